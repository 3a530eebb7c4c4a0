"""Explicit casts between float formats."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor


def has_16_bits(dtype: str) -> bool:
    """Returns whether a dtype is one of the floats with 16 bits.

    Args:
        dtype: Its name.

    Example:

    >>> has_16_bits("bfloat16"), has_16_bits("int16")
    (True, False)
    """
    return dtype in ("bfloat16", "float16")


def dtype_name(tensor: Any) -> str:
    """Returns the name of the dtype of a tensor or variable."""
    return keras.backend.standardize_dtype(tensor.dtype)


def in_16_bits(tensors: Iterable[Any]) -> list[Any]:
    """Returns those tensors or variables that have 16 bits an element.

    Args:
        tensors: Anything with a dtype.

    Example:

    >>> import numpy as np
    >>> [float(x) for x in in_16_bits([np.float32(1), np.float16(2)])]
    [2.0]
    """
    return [each for each in tensors if has_16_bits(dtype_name(each))]


def widened(tensor: Tensor) -> Tensor:
    """Returns `tensor` in at least float32; float64 stays float64.

    Args:
        tensor: Floating-point tensor of any shape, or a Python number.

    Example:

    >>> import numpy as np
    >>> keras.backend.standardize_dtype(widened(np.float16(1)).dtype)
    'float32'
    """
    tensor = ops.convert_to_tensor(tensor)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return ops.cast(tensor, keras.backend.result_type(dtype, "float32"))
