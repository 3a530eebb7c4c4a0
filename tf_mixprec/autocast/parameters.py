"""Which tensors are parameters: variables, constants, and parts of them.

Where they meet computed values they follow these, as a scalar does in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import ml_dtypes
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# What these make of parameters are parameters.
_KEEP_PARAMETERS = frozenset(
    [
        "Identity",
        "StopGradient",
        "EnsureShape",
        "Reshape",
        "Transpose",
        "ExpandDims",
        "Squeeze",
        "Slice",
        "StridedSlice",
        "Split",
        "SplitV",
        "Unpack",
        "Neg",
        "Fill",
        "BroadcastTo",
        "Tile",
    ]
)
_SMALL = 1 << 20  # elements of a constant that is looked at
_SOURCES = frozenset(("ReadVariableOp", "ZerosLike", "OnesLike"))


def makes_parameters(
    op: tf.Operation, low: tf.DType, is_parameter: Callable[[tf.Tensor], bool]
) -> bool:
    """Returns whether an op makes parameters, which may be rounded.

    Args:
        op: The op.
        low: The 16-bit dtype.
        is_parameter: Whether an input of it is one.
    """
    if op.type == "Const":
        value = tf.get_static_value(op.outputs[0])
        return value is not None and value_fits(value, low)
    if op.type in _SOURCES:
        return True
    floats = [each for each in op.inputs if each.dtype.is_floating]
    return (
        op.type in _KEEP_PARAMETERS
        and bool(floats)
        and all(is_parameter(each) for each in floats)
    )


def is_constant_that_fits(captured: Any, low: tf.DType) -> bool:
    """Returns whether something from outside is a small constant that fits.

    Args:
        captured: What a graph has captured.
        low: The 16-bit dtype.
    """
    return (
        isinstance(captured, tf.Tensor)
        and not tf.is_symbolic_tensor(captured)
        and captured.dtype == tf.float32
        and captured.shape.num_elements() <= _SMALL
        and value_fits(captured.numpy(), low)
    )


def value_fits(value: np.ndarray, low: tf.DType) -> bool:
    """Returns whether a constant may be rounded to 16 bits.

    A scalar may, as a number in Python does, if it keeps its size: not if a
    finite value becomes infinite, or another than 0 becomes subnormal or 0. An
    array may if each of its values is one of 16 bits.

    Args:
        value: Its value.
        low: The 16-bit dtype.
    """
    if value.dtype != np.float32:
        return True
    if value.ndim:
        with np.errstate(over="ignore"):
            rounded = value.astype(low.as_numpy_dtype).astype(value.dtype)
        return np.array_equal(rounded, value, equal_nan=True)
    limits = ml_dtypes.finfo(low.as_numpy_dtype)
    size = np.abs(value)
    return not (np.isfinite(size) and size) or bool(
        np.float32(limits.smallest_normal) <= size <= np.float32(limits.max)
    )
