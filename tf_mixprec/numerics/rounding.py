"""Rounds float32 to 16 bits, and keeps what is lost.

A bfloat16 is the upper half of a float32. Rounding half away from zero adds
0x8000 to the bits and drops the lower half, for either sign; what is dropped,
as a signed number, is the remainder. No two float32 values share such a pair.
With half to even some would: the numbers half way below and half way above an
even upper half both round to it, with remainders of 0x8000 both. Megatron-LM
keeps remainders in its distributed optimizer.
"""

from keras import ops

from tf_mixprec._typing import Tensor

_HALF = 0x8000

LARGEST_FLOAT16 = 65504.0


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Returns float32 values rounded to the nearest 16-bit number.

    In bfloat16 half way goes away from zero. In float16 it goes to even, and
    what is beyond the largest finite number becomes that number.

    Args:
        x: Float32 tensor of any shape.
        dtype: `"bfloat16"` or `"float16"`.

    Example:

    >>> import numpy as np
    >>> [float(v) for v in rounded(np.float32([1 + 2**-8, -7e4]), "bfloat16")]
    [1.0078125, -70144.0]
    >>> [float(v) for v in rounded(np.float32([1 + 2**-11, -7e4]), "float16")]
    [1.0, -65504.0]
    """
    x = ops.convert_to_tensor(x)
    if dtype == "float16":
        return ops.cast(ops.clip(x, -LARGEST_FLOAT16, LARGEST_FLOAT16), dtype)
    upper = _upper_half(ops.add(_bits_as(x, "int32"), _HALF))
    return ops.where(ops.isnan(x), ops.cast(float("nan"), dtype), upper)


def stochastically_rounded(x: Tensor, random_bits: Tensor) -> Tensor:
    """Returns float32 values rounded to one of the two nearest bfloat16.

    To either with the probability that makes the mean the value itself.

    Args:
        x: Float32 tensor of any shape.
        random_bits: Int32 tensor of that shape, uniform from 0 to 2**16 - 1.

    Example:

    >>> import numpy as np
    >>> bits = np.int32([0, 0x7FFF, 0x8000, 0xFFFF])
    >>> x = np.full(4, 1 + 2**-8, "float32")
    >>> [float(v) for v in stochastically_rounded(x, bits)]
    [1.0, 1.0, 1.0078125, 1.0078125]
    """
    x = ops.convert_to_tensor(x)
    upper = _upper_half(ops.add(_bits_as(x, "int32"), random_bits))
    # What is not finite has no neighbours.
    return ops.where(ops.isfinite(x), upper, ops.cast(x, "bfloat16"))


def remainder(x: Tensor) -> Tensor:
    """Returns the int16 that `rounded(x, "bfloat16")` lacks of float32 values.

    Args:
        x: Float32 tensor of any shape.

    Example:

    >>> import numpy as np
    >>> [int(v) for v in remainder(np.float32([1.0, 1 + 2**-23, 1 - 2**-24]))]
    [0, 1, -1]
    """
    bits = _bits_as(ops.convert_to_tensor(x), "int32")
    # The lower half, from -2**15: the cast takes numbers that int16 holds.
    lower = ops.right_shift(ops.left_shift(bits, 16), 16)
    return ops.cast(lower, "int16")


def combined(upper: Tensor, lower: Tensor) -> Tensor:
    """Returns the float32 values that bfloat16 values and remainders stand for.

    A remainder that was not made with the value is at most half an ulp off. At
    0 and inf it may stand for no number at all; then it does not count.

    Args:
        upper: Bfloat16 tensor: from `rounded`.
        lower: Int16 tensor of the same shape: from `remainder`.

    Example:

    >>> import numpy as np
    >>> x = np.float32([3.14159274, -1e-40])
    >>> exact = combined(rounded(x, "bfloat16"), remainder(x))
    >>> bool(np.all(exact == x))
    True
    """
    bits = ops.cast(_bits_as(upper, "int16"), "int32")
    bits = ops.add(ops.left_shift(bits, 16), ops.cast(lower, "int32"))
    exact = _bits_as(bits, "float32")
    return ops.where(ops.isnan(exact), ops.cast(upper, "float32"), exact)


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Returns where two 16-bit tensors are the same, also nan and zeros.

    Args:
        a: Float16 or bfloat16 tensor.
        b: Tensor of the same dtype and shape.
    """
    return ops.equal(_bits_as(a, "int16"), _bits_as(b, "int16"))


def _upper_half(bits: Tensor) -> Tensor:
    """Returns the upper halves of int32 bits as bfloat16."""
    upper = ops.cast(ops.right_shift(bits, 16), "int16")
    return _bits_as(upper, "bfloat16")


def _bits_as(x: Tensor, dtype: str) -> Tensor:
    """Returns the same bits as another dtype of the same size."""
    # Keras asks for a last axis of a known length: a scalar has none.
    column = ops.expand_dims(x, -1)
    return ops.squeeze(ops.view(column, dtype), -1)
