"""What training needs of Keras that has no public name.

`tests/training/test_keras_internals.py` fails when Keras moves one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.optimizers import tracing

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def all_layers(model: Any) -> list[Any]:
    """Returns the model, its layers, and the layers inside of those."""
    return list(model._flatten_layers())


def is_built(model: Any) -> bool:
    """Returns whether all variables of a model are there."""
    return all(layer.built for layer in all_layers(model))


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


def take_losses(model: Any) -> list[Any]:
    """Returns the losses that layers have added in a call, and clears them.

    Without those of regularizers of weights, which Keras computes when
    `model.losses` is read.
    """
    losses = [each for layer in all_layers(model) for each in layer._losses]
    model._clear_losses()
    return losses


def taken(layer: Any, outputs: Any) -> tuple[Any, list[Any], list[Any]]:
    """Returns all that a call has made, as what a function can return.

    Args:
        layer: The layer that was called.
        outputs: What it returned: tensors, nested.

    Returns:
        The outputs, the mask on each of them, and the losses that were added.
    """
    masks = [_mask_of(each) for each in keras.tree.flatten(outputs)]
    return outputs, masks, take_losses(layer)


def put_back(layer: Any, results: tuple[Any, list[Any], list[Any]]) -> Any:
    """Returns the outputs of `taken`, with their masks, and adds the losses.

    Args:
        layer: The layer that was called.
        results: What `taken` returned, as other tensors.
    """
    outputs, masks, losses = results
    for tensor, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
        _set_mask(tensor, mask)
    for loss in losses:
        layer.add_loss(loss)
    return outputs


def copy_mask(source: Any, target: Any) -> None:
    """Puts the mask of one tensor on another."""
    _set_mask(target, _mask_of(source))


def _mask_of(tensor: Any) -> Any:
    """Returns the mask that a layer has put on a tensor; `None` for none."""
    return getattr(tensor, "_keras_mask", None)


def _set_mask(tensor: Any, mask: Any) -> None:
    """Puts a mask on a tensor, unless it is `None`."""
    if mask is not None:
        tensor._keras_mask = mask


def loss_tracker(model: Any) -> Any:
    """Returns the metric that has the mean loss of an epoch."""
    return model._loss_tracker


def has_loss(model: Any) -> bool:
    """Returns whether a model is compiled with a loss."""
    return model._compile_loss is not None


def compute_loss(model: Any, *, training: bool, **arguments: Any) -> Any:
    """Returns this replica's share of the loss of a compiled model.

    Args:
        model: A compiled model.
        training: Whether it is trained.
        **arguments: `x`, `y`, `y_pred` and `sample_weight`.
    """
    return model._compute_loss(training=training, **arguments)


def predictions(model: Any, x: Any, *, training: bool) -> Any:
    """Returns what a model makes of inputs."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


# The method of a model with which `fit` builds it under a strategy: it averages
# a batch over replicas, which several workers cannot.
SYMBOLIC_BUILD = "_maybe_symbolic_build"


def builds_symbolically(model: Any) -> bool:
    """Returns whether `fit` builds a model before it traces it."""
    return model._distribute_strategy is not None


def first_batch(epoch_iterator: Any) -> Any:
    """Returns a batch of what `fit` iterates over; it starts anew later."""
    _, _, iterator = next(iter(epoch_iterator))  # of the first step
    return next(iterator)


def without_optionals(data: Any) -> Any:
    """Returns a batch with `None` where a generator yields nothing."""
    return keras.tree.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, data
    )


def has_counted(model: Any) -> bool:
    """Returns whether the loss of some step is in the mean of the epoch.

    True while a function is traced, when that is not known yet.
    """
    tracker = loss_tracker(model)
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
