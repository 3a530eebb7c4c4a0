"""Whether numbers are finite.

Not here: gradients that are `None` or sparse (`optimizers/gradients.py`).
"""

from collections.abc import Sequence

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened


def found_inf(tensors: Sequence[Tensor]) -> Tensor:
    """Returns whether any element of any tensor is inf or nan.

    Args:
        tensors: Floating-point tensors of any shapes and dtypes, empty ones
            included. Of no tensors, the answer is false.

    Returns:
        Scalar bool tensor.

    Example:

    >>> import numpy as np
    >>> bool(found_inf([np.ones(3), np.array([np.nan], "float16")]))
    True
    """
    flags = [ops.logical_not(ops.all(ops.isfinite(t))) for t in tensors]
    if not flags:
        return ops.convert_to_tensor(False)
    return ops.any(ops.stack(flags))


def found_inf_by_sums(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the same as `found_inf`, in a faster way for large tensors.

    An inf or nan makes the sum of a tensor inf or nan, and a sum is the
    cheapest pass over it. A sum of large finite numbers can overflow too, so
    when a sum is not finite, and only then, every element is looked at.

    Args:
        tensors: Floating-point tensors of any shapes and dtypes.

    Returns:
        Scalar bool tensor.
    """
    sums = [ops.sum(_with_wide_range(t)) for t in tensors]
    return ops.cond(
        found_inf(sums),
        lambda: found_inf(tensors),
        lambda: ops.convert_to_tensor(False),
    )


def _with_wide_range(tensor: Tensor) -> Tensor:
    """Returns a tensor whose sum does not overflow at once, as in float16."""
    tensor = ops.convert_to_tensor(tensor)
    # A bfloat16 has the range of float32, and a cast would be a copy.
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return tensor if dtype == "bfloat16" else widened(tensor)
