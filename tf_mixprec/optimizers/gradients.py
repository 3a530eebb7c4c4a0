"""Unscales and judges lists of gradients; only here are they sparse."""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec import numerics
from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# Elements of a tensor from which on its arithmetic, and no longer the start of
# each operation, is what takes the time. See `benchmarks/optimizer_step.py`.
LARGE_ELEMENTS = 2**15


def unscaled(
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    loss_scale: Tensor,
    *,
    by_reciprocal: bool,
) -> list[Gradient]:
    """Returns the gradients divided by the loss scale.

    Args:
        gradients: Gradients of the scaled loss: dense, sparse or `None`.
        variables: The variable of each. One that is overwritten with its
            gradient (a float8 scale) has a gradient that is no gradient, so
            it is not divided.
        loss_scale: Scalar float32 tensor, dimensionless.
        by_reciprocal: Whether float32 holds the scale's reciprocal. For a power
            of two the product is the quotient, and it takes half the time.

    Returns:
        The gradients in at least float32, since half precision could not hold
        them once divided.
    """
    if by_reciprocal:
        return multiplied(gradients, variables, 1.0 / loss_scale)
    return _each(gradients, variables, loss_scale, keras.ops.divide)


def found_inf(gradients: Sequence[Gradient]) -> Tensor:
    """Returns whether any gradient is inf or nan, as a scalar bool tensor.

    A sparse gradient is judged by what would be added to each row: two finite
    float16 slices of one row can overflow together.
    """
    tensors = [row_values(g) for g in gradients if g is not None]
    if elements_per_tensor(tensors) < LARGE_ELEMENTS or sees_gpu():
        return numerics.found_inf(tensors)
    return numerics.found_inf_by_sums(tensors)


def found_inf_and_norm(
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    divisor: Tensor,
    *,
    norm_counts: bool,
) -> tuple[Tensor, Tensor]:
    """Returns `found_inf` and the global norm of the divided gradients.

    One pass over the scaled gradients serves both: their squares are summed as
    Keras sums them, and a power of two drops out exactly. Where such a sum is
    not finite, and only then, they are looked at one by one.

    Args:
        gradients: Gradients of the scaled loss: dense, sparse or `None`.
        variables: The variable of each.
        divisor: Scalar float32 tensor, dimensionless: the loss scale, times
            what else the gradients are to be divided by.
        norm_counts: Whether gradients whose norm float32 does not hold count
            as inf, as they must where one is clipped by it.

    Returns:
        A scalar bool and a scalar float32 tensor.
    """
    kept = [
        (row_values(g), v)
        for g, v in zip(gradients, variables, strict=True)
        if g is not None
    ]
    normed = [numerics.widened(g) for g, v in kept if not is_overwritten(v)]
    overwritten = [g for g, v in kept if is_overwritten(v)]

    def looked_at() -> tuple[Tensor, Tensor]:
        exact = _global_norm([g / tf.cast(divisor, g.dtype) for g in normed])
        counted = [*normed, *overwritten, *([exact] if norm_counts else [])]
        return numerics.found_inf(counted), exact

    if sees_gpu():
        return looked_at()
    norm = _global_norm(normed)
    return tf.cond(
        numerics.found_inf([norm, *overwritten]),
        looked_at,
        lambda: (tf.constant(False), norm / divisor),
    )


def _global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the root of the sum of all squares, a scalar float32 tensor."""
    # `l2_loss` is half the sum of squares, without storing the squares.
    halves = [tf.cast(2.0 * tf.nn.l2_loss(t), tf.float32) for t in tensors]
    return tf.sqrt(tf.reduce_sum(halves))


def multiplied(
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    factor: Tensor,
) -> list[Gradient]:
    """Returns the gradients times a factor, in at least float32.

    Args:
        gradients: Dense, sparse or `None`.
        variables: The variable of each; one that is overwritten with its
            gradient has a gradient that is no gradient, so it is left alone.
        factor: Scalar float32 tensor.
    """
    return _each(gradients, variables, factor, keras.ops.multiply)


def _each(
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    factor: Tensor,
    combine: Callable[[Tensor, Tensor], Tensor],
) -> list[Gradient]:
    """Returns each gradient that is one, combined with a factor."""
    return [
        g if g is None or is_overwritten(v) else _combined(g, factor, combine)
        for g, v in zip(gradients, variables, strict=True)
    ]


def elements_per_tensor(tensors: Sequence[Gradient]) -> float:
    """Returns the average number of elements, 0 where one is not known."""
    present = [t for t in tensors if t is not None]
    counts = [c for c in map(_element_count, present) if c is not None]
    if not present or len(counts) < len(present):
        return 0.0
    return sum(counts) / len(counts)


def _element_count(tensor: Any) -> int | None:
    """Returns the number of elements, or `None` where it is not static."""
    shape = getattr(tensor, "shape", ())  # a Python number has none
    if getattr(shape, "rank", 0) is None or None in tuple(shape):
        return None
    return math.prod(shape)


def signature(gradients: Sequence[Gradient]) -> tuple[Any, ...]:
    """Returns what the trace of a function of gradients depends on."""
    return tuple(
        None if g is None else (is_sparse(g), tuple(g.shape), g.dtype)
        for g in gradients
    )


def widened(gradient: Gradient) -> Gradient:
    """Returns a gradient in at least float32."""
    return _combined(gradient, None, lambda g, _: g)


def plus_gradient_of(
    function: Callable[[Tensor], Tensor], value: Tensor, gradient: Gradient
) -> Gradient:
    """Returns a gradient with that of a scalar function added.

    Args:
        function: From a tensor to a scalar.
        value: Where its gradient is taken: a tensor or a variable.
        gradient: What to add it to. A sparse one becomes dense.
    """
    value = tf.convert_to_tensor(value)
    with tf.GradientTape() as tape:
        tape.watch(value)
        result = function(value)
    added = tape.gradient(result, value)
    return gradient if added is None else tf.add(gradient, added)


def cast(gradient: Gradient, dtype: Any) -> Gradient:
    """Returns a dense or sparse gradient in another dtype."""
    return tf.cast(gradient, dtype)


def check_match(
    gradients: Sequence[Gradient], variables: Sequence[Variable]
) -> None:
    """Raises unless there is a gradient, and a variable for each."""
    if any(isinstance(gradient, tuple) for gradient in gradients):
        raise ValueError(
            "`grads` must be gradients only, because the variables are an "
            "argument of their own; for pairs call `apply_gradients`. "
            "Received: (gradient, variable) pairs"
        )
    if len(gradients) != len(variables):
        raise ValueError(
            "Gradients and variables must match one to one, because each "
            "gradient updates its variable. Received: "
            f"{len(gradients)} gradients for {len(variables)} variables"
        )
    # Here and not in the inner optimizer, where it would be raised from within
    # a branch of the graph.
    check_any_exists(gradients)


def check_any_exists(gradients: Sequence[Gradient]) -> None:
    """Raises if there is nothing to update with."""
    if all(gradient is None for gradient in gradients):
        raise ValueError("No gradients provided for any variable.")


def is_overwritten(variable: Variable) -> bool:
    """Returns whether the variable takes its gradient as its new value."""
    return getattr(variable, "overwrite_with_gradient", False)


def are_plain(gradients: Sequence[Gradient]) -> bool:
    """Returns whether all gradients are dense and of at most float32."""
    return not any(
        is_sparse(g) or (g is not None and g.dtype.size > 4) for g in gradients
    )


def is_sparse(gradient: Any) -> bool:
    """Returns whether the gradient is a `tf.IndexedSlices`."""
    return keras.backend.backend() == "tensorflow" and isinstance(
        gradient, tf.IndexedSlices
    )


def _combined(
    gradient: Gradient,
    factor: Tensor | None,
    combine: Callable[[Tensor, Tensor], Tensor],
) -> Gradient:
    if is_sparse(gradient):
        return tf.IndexedSlices(
            _combined(gradient.values, factor, combine),
            gradient.indices,
            gradient.dense_shape,
        )
    return combine(numerics.widened(gradient), factor)


def sees_gpu() -> bool:
    """Returns whether branches are dear and every reduction is fast."""
    # A branch waits for its predicate to come to the host, every step.
    return keras.backend.backend() == "tensorflow" and bool(
        tf.config.list_physical_devices("GPU")
    )


def row_values(gradient: Gradient) -> Tensor:
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
