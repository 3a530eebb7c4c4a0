"""Whether numbers are finite.

Not here: gradients that are `None` or sparse (`optimizers/gradients.py`).
"""

from collections.abc import Sequence

from keras import ops

from tf_mixprec._typing import Tensor


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
