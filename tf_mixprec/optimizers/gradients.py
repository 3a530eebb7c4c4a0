"""Unscales and judges lists of gradients; only here are they sparse."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec import numerics
from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def unscale(
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    loss_scale: Tensor,
) -> tuple[list[Gradient], Tensor]:
    """Returns the gradients divided by the loss scale, and `found_inf`.

    Args:
        gradients: Gradients of the scaled loss: dense, sparse or `None`.
        variables: The variable of each. One that is overwritten with its
            gradient (a float8 scale) has a gradient that is no gradient, so
            it is judged but not divided.
        loss_scale: Scalar float32 tensor, dimensionless.

    Returns:
        The gradients in at least float32, since half precision could not hold
        them once divided; and a scalar bool tensor, true if one was inf or nan
        before or after.
    """
    unscaled: list[Gradient] = []
    judged: list[Tensor] = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None:
            unscaled.append(None)
            continue
        scale = 1.0 if is_overwritten(variable) else loss_scale
        unscaled.append(_divided(gradient, scale))
        if is_sparse(gradient):
            judged.append(_divided(_row_values(gradient), scale))
        else:
            judged.append(unscaled[-1])
    return unscaled, numerics.found_inf(judged)


def found_inf(gradients: Sequence[Gradient]) -> Tensor:
    """Returns whether any gradient is inf or nan, as a scalar bool tensor.

    A sparse gradient is judged by what would be added to each row: two finite
    float16 slices of one row can overflow together.
    """
    return numerics.found_inf(
        [_row_values(g) for g in gradients if g is not None]
    )


def check_any_exists(gradients: Sequence[Gradient]) -> None:
    """Raises if there is nothing to update with."""
    if all(gradient is None for gradient in gradients):
        raise ValueError("No gradients provided for any variable.")


def is_overwritten(variable: Variable) -> bool:
    """Returns whether the variable takes its gradient as its new value."""
    return getattr(variable, "overwrite_with_gradient", False)


def is_sparse(gradient: Any) -> bool:
    """Returns whether the gradient is a `tf.IndexedSlices`."""
    return keras.backend.backend() == "tensorflow" and isinstance(
        gradient, tf.IndexedSlices
    )


def _divided(gradient: Gradient, scale: Tensor | float) -> Gradient:
    if is_sparse(gradient):
        return tf.IndexedSlices(
            _divided(gradient.values, scale),
            gradient.indices,
            gradient.dense_shape,
        )
    if isinstance(scale, float) and scale == 1.0:
        return gradient
    return keras.ops.divide(numerics.widened(gradient), scale)


def _row_values(gradient: Gradient) -> Tensor:
    """Returns what reaches the variable's rows, in the gradient's own dtype.

    For a dense gradient that is the gradient. For a sparse one it is the
    slices with those of one row summed, without making the other rows.
    """
    if not is_sparse(gradient):
        return gradient
    _, row_of_slice = tf.unique(gradient.indices)
    # As many segments as slices, since XLA wants a static shape; the surplus
    # segments are empty and sum to 0.
    return tf.math.unsorted_segment_sum(
        gradient.values, row_of_slice, tf.shape(gradient.indices)[0]
    )
