"""Where float formats round to zero, to subnormal numbers, and to infinity.

As bits of float32 magnitudes: these are integers that ascend with the numbers,
so that values can be compared without arithmetic. TensorFlow's processors flush
subnormal float32 numbers to zero before they compare them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

_INFINITY_BITS = 0x7F800000


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A float format, as seen from float32.

    Args:
        name: Such as `"float16"`.
        first_nonzero: Bits of the smallest float32 magnitude that does not
            round to zero in this format.
        first_normal: Bits of the smallest that rounds to a normal number.
        first_nonfinite: Bits of the smallest that rounds to inf, or to nan in
            a format without inf.
        fraction_bits: How many bits of the fraction the format keeps.
        largest: The largest finite number.
        smallest_normal: The smallest number that is not subnormal.
        smallest_subnormal: The smallest number above zero.
    """

    name: str
    first_nonzero: int
    first_normal: int
    first_nonfinite: int
    fraction_bits: int
    largest: float
    smallest_normal: float
    smallest_subnormal: float

    def headroom(self, amax: float) -> float:
        """Returns the bits between a magnitude and the largest number.

        Args:
            amax: The magnitude; of 0 it is inf.
        """
        return math.log2(self.largest / amax) if amax else math.inf


@functools.cache
def float_format(name: str) -> FloatFormat:
    """Returns what there is to know of a float format.

    The limits are found by rounding, with `ml_dtypes`, and not by a formula.

    Args:
        name: A float dtype of 16 or 8 bits, or `"float32"`.

    Example:

    >>> float_format("float16").largest, float_format("bfloat16").fraction_bits
    (65504.0, 7)
    """
    info = ml_dtypes.finfo(name)
    dtype = info.dtype
    smallest_normal = float(info.smallest_normal)

    def first(holds: Callable[[float], bool]) -> int:
        return _first(lambda bits: holds(_rounded(bits, dtype)))

    return FloatFormat(
        name=name,
        first_nonzero=first(lambda value: value > 0),
        first_normal=first(lambda value: value >= smallest_normal),
        first_nonfinite=first(lambda value: not math.isfinite(value)),
        fraction_bits=int(info.nmant),
        largest=float(info.max),
        smallest_normal=smallest_normal,
        smallest_subnormal=float(info.smallest_subnormal),
    )


def _rounded(bits: int, dtype: np.dtype) -> float:
    value = np.array([bits], "int32").view("float32")
    with np.errstate(over="ignore", invalid="ignore"):
        return float(value.astype(dtype).astype("float64")[0])


def _first(holds: Callable[[int], bool]) -> int:
    """Returns the first float32 magnitude with a property, by bisection."""
    low, high = 0, _INFINITY_BITS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
