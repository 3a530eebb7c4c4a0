"""Which tensors are parameters: variables, constants, and parts of them.

Where they meet computed values they follow these, as a scalar does in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

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
_SOURCES = frozenset(("ReadVariableOp", "Const", "ZerosLike", "OnesLike"))


def makes_parameters(
    op: tf.Operation, is_parameter: Callable[[tf.Tensor], bool]
) -> bool:
    """Returns whether an op makes parameters.

    Args:
        op: The op.
        is_parameter: Whether an input of it is one.
    """
    if op.type in _SOURCES:
        return True
    floats = [each for each in op.inputs if each.dtype.is_floating]
    return (
        op.type in _KEEP_PARAMETERS
        and bool(floats)
        and all(is_parameter(each) for each in floats)
    )


def in_range(tensor: tf.Tensor, low: tf.DType) -> bool:
    """Returns whether a constant keeps its size in 16 bits.

    It does unless a finite value becomes infinite, or another than 0 becomes
    subnormal or 0. Of what is not a constant nothing is known.
    """
    value = tf.get_static_value(tensor)
    if value is None or not value.size:
        return True
    limits = ml_dtypes.finfo(low.as_numpy_dtype)
    size = np.abs(value[np.isfinite(value) & (value != 0)])
    return not size.size or bool(
        size.max() <= np.float32(limits.max)
        and size.min() >= np.float32(limits.smallest_normal)
    )
