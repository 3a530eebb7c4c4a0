"""What training needs of Keras that has no public name.

`tests/training/test_keras_internals.py` fails when Keras moves one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.optimizers import tracing


def all_layers(model: Any) -> list[Any]:
    """Returns the model, its layers, and the layers inside of those."""
    return list(model._flatten_layers())


@contextlib.contextmanager
def losses_replaced(model: Any, losses: list[Any]) -> Iterator[None]:
    """Makes `model.losses` what is given, in a block.

    Keras's own trainer for JAX hands losses to `compute_loss` in this way.

    Args:
        model: The model.
        losses: The losses; an empty list replaces nothing.
    """
    former = model._losses_override
    # Past Keras's tracking of attributes: these are tensors of one trace.
    object.__setattr__(model, "_losses_override", losses)
    try:
        yield
    finally:
        object.__setattr__(model, "_losses_override", former)


def has_counted(model: Any) -> bool:
    """Returns whether the loss of some step is in the mean of the epoch.

    True while a function is traced, when that is not known yet.
    """
    tracker = model._loss_tracker
    if tracker is None or tracing.current_graph() is not None:
        return True
    return float(keras.ops.convert_to_numpy(tracker.count)) > 0


def build_metrics(model: Any, data: Any) -> None:
    """Makes the variables of loss and metrics, where they are not there yet.

    Args:
        model: A compiled model.
        data: What `train_step` is given.
    """
    unbuilt = (model._compile_metrics, model._compile_loss)
    if any(each is not None and not each.built for each in unbuilt):
        model._symbolic_build(data_batch=data)
