"""The optimizer that a callback asks, and what it must be."""

from typing import Any

import keras

from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.training import keras_internals


def check_is_wrapped(name: str, optimizer: Any, because: str) -> None:
    """Raises unless this is an optimizer of ours.

    Args:
        name: Of the callback.
        optimizer: What it is to ask.
        because: What it asks for, as the end of a clause.
    """
    if not isinstance(optimizer, LossScaleOptimizer):
        raise ValueError(
            f"`{name}` must be used with an `mp.LossScaleOptimizer`, because "
            f"{because}. Compile the model with `optimizer=mp.wrap(optimizer)`"
            "; under `mixed_float16` Keras otherwise wraps it in a class of "
            f"its own. Received: optimizer={optimizer!r}"
        )


def check_type(optimizer: Any, because: str) -> None:
    """Raises unless this is an optimizer of ours, or `None` for the model's.

    Args:
        optimizer: What a user has given a callback.
        because: What it is asked for, as the end of a clause.
    """
    if optimizer is not None and not isinstance(optimizer, LossScaleOptimizer):
        raise TypeError(
            f"`optimizer` must be a `mp.LossScaleOptimizer`, because {because}"
            "; `mp.wrap` makes one. Received: "
            f"optimizer={optimizer!r}"
        )


def check_can_note(name: str, optimizer: Any) -> None:
    """Raises unless each step of an optimizer can be told from the others.

    Args:
        name: Of the callback.
        optimizer: A `mp.LossScaleOptimizer`.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"`{name}` must be used with the TensorFlow backend of Keras, "
            "because steps note what it asks for in variables. Received: the "
            f"backend {keras.backend.backend()!r}"
        )
    if hasattr(optimizer, "optimizers"):
        raise ValueError(
            f"`{name}` must be used with a single optimizer, because those of "
            "a `MultiOptimizer` clip and update apart. Received: "
            f"optimizer={optimizer!r}"
        )
    steps = optimizer.gradient_accumulation_steps
    if steps:
        raise ValueError(
            f"`{name}` must be used without `gradient_accumulation_steps`, "
            "because a step that only accumulates clips and updates nothing; "
            "give `mp.TrainStep` `accumulation_steps`. Received: "
            f"gradient_accumulation_steps={steps!r}"
        )


def build_if_possible(model: keras.Model, optimizer: Any) -> bool:
    """Builds the optimizer of a model whose variables are all there.

    Args:
        model: The model.
        optimizer: Its optimizer, or another one.

    Returns:
        Whether the optimizer is built.
    """
    if optimizer is model.optimizer and keras_internals.is_built(model):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)
    return optimizer.built
