"""The variables of a model and its optimizer, before the first step."""

import json
from typing import Any


def build_config(model: Any) -> Any:
    """Returns what Keras knows of a model's inputs, in JSON types.

    `None` if it knows nothing, or a model says it in another way.
    """
    config = model.get_build_config()
    try:
        json.dumps(config)
    except TypeError:
        return None
    return config


def build(model: Any, config: Any) -> None:
    """Makes the variables of a model that has none yet.

    Args:
        model: The model.
        config: From `build_config`, once it had its variables.

    Raises:
        ValueError: If they cannot be made without a batch.
    """
    if model.built:
        return
    if config is not None:
        with model.distribute_strategy.scope():
            model.build_from_config(_with_shapes(config))
    if not model.variables:  # Keras may build the layers, and not say so
        check_is_built(model)


def check_is_built(model: Any) -> None:
    """Raises unless a model has its variables."""
    if not model.built:
        raise ValueError(
            "The model must be built, because its variables are what is saved "
            "and restored; give it a `keras.Input`, or call it on a batch. "
            f"Received: {model!r}"
        )


def build_optimizer(step: Any) -> None:
    """Makes the variables of the optimizer of a step."""
    with step.model.distribute_strategy.scope():
        step.optimizer.build(step.model.trainable_variables)


def _with_shapes(config: Any) -> Any:
    """Returns a structure out of JSON, with its shapes as tuples."""
    if isinstance(config, dict):
        return {name: _with_shapes(value) for name, value in config.items()}
    if not isinstance(config, list):
        return config
    if all(size is None or isinstance(size, int) for size in config):
        return tuple(config)
    return [_with_shapes(each) for each in config]
