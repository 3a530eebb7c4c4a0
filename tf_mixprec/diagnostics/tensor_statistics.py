"""Statistics of a tensor, in a graph or under XLA, as one vector.

What is counted is counted by bits. Comparisons would not see subnormal float32
numbers, which TensorFlow's kernels flush to zero, and XLA's maximum of numbers
drops nan.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.float_bits import EXPONENT_BIAS
from tf_mixprec.diagnostics.float_bits import FRACTION_BITS
from tf_mixprec.diagnostics.float_bits import INFINITY_BITS
from tf_mixprec.diagnostics.float_bits import as_float32
from tf_mixprec.diagnostics.float_bits import biased_exponents
from tf_mixprec.diagnostics.float_bits import magnitude_bits
from tf_mixprec.diagnostics.float_bits import own_magnitude_bits
from tf_mixprec.diagnostics.float_bits import power_of_two
from tf_mixprec.diagnostics.float_bits import rounded_bits
from tf_mixprec.numerics.formats import FORMATS
from tf_mixprec.numerics.formats import FloatFormat
from tf_mixprec.numerics.formats import float_format

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_SMALLEST_NORMAL = 2.0**-126
EXPONENT_COUNT = 256  # of float32: eight bits
_BRIEF = ("size", "nan", "inf", "zero", "amax")
_ALSO = ("smallest", "power")
_PER_FORMAT = ("underflow", "subnormal", "overflow", "noise")
BRIEF_LENGTH = len(_BRIEF)
FULL_LENGTH = (
    BRIEF_LENGTH + len(_ALSO) + len(_PER_FORMAT) * len(FORMATS) + EXPONENT_COUNT
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InFormat:
    """What becomes of the values of a tensor in another float format.

    Args:
        underflow: Nonzero values that become zero.
        subnormal: Values that become subnormal, with fewer digits.
        overflow: Finite values that become inf, or nan where there is no inf.
        noise: The sum of squares of what rounding changes, over the sum of
            squares of the values; without those that overflow.
    """

    underflow: int
    subnormal: int
    overflow: int
    noise: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """Statistics of the values of a tensor; in brief, the first five.

    Args:
        size: How many values.
        nan: How many are nan.
        inf: How many are inf or -inf.
        zero: How many are zero.
        amax: The largest finite magnitude; 0 if there is none.
        smallest: The smallest nonzero magnitude; inf if there is none.
        rms: The root of the mean square of the finite values.
        formats: By name of a format, what becomes of the values there.
        exponents: By floor of log2 of the magnitude, how many finite nonzero
            values. Subnormal float32 numbers count as -127.
    """

    size: int
    nan: int
    inf: int
    zero: int
    amax: float
    smallest: float = math.inf
    rms: float = 0.0
    formats: dict[str, InFormat] = dataclasses.field(default_factory=dict)
    exponents: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def nonfinite(self) -> int:
        """How many values are inf or nan."""
        return self.nan + self.inf

    @property
    def nonzero(self) -> int:
        """How many values are finite and not zero."""
        return self.size - self.nonfinite - self.zero

    def underflow_fraction(self, name: str) -> float:
        """Returns the share of the nonzero values that become zero.

        Args:
            name: Of the format.
        """
        return _fraction(self.formats[name].underflow, self.nonzero)

    def subnormal_fraction(self, name: str) -> float:
        """Returns the share of the nonzero values that become subnormal.

        Args:
            name: Of the format.
        """
        return _fraction(self.formats[name].subnormal, self.nonzero)

    def overflow_fraction(self, name: str) -> float:
        """Returns the share of the nonzero values that overflow.

        Args:
            name: Of the format.
        """
        return _fraction(self.formats[name].overflow, self.nonzero)

    def sqnr(self, name: str) -> float:
        """Returns the ratio of signal to quantization noise, in dB.

        10 log10(sum x^2 / sum (x - rounded x)^2), inf where nothing is lost.

        Args:
            name: Of the format.
        """
        noise = self.formats[name].noise
        return -10 * math.log10(noise) if noise > 0 else math.inf

    def headroom(self, name: str) -> float:
        """Returns the bits between `amax` and the largest number.

        Args:
            name: Of the format.
        """
        return float_format(name).headroom(self.amax)


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def brief_statistics(tensor: Tensor) -> Tensor:
    """Returns how many values are inf, nan or 0, and the largest other one.

    Args:
        tensor: A float tensor of any shape.

    Returns:
        Float64 vector of `BRIEF_LENGTH`, for `decoded`.
    """
    return _traced_once(_brief, tensor.dtype)(tf.reshape(tensor, [-1]))


def full_statistics(tensor: Tensor) -> Tensor:
    """Returns all statistics of a tensor.

    Args:
        tensor: A float tensor of any shape.

    Returns:
        Float64 vector of `FULL_LENGTH`, for `decoded`.
    """
    return _traced_once(_full, tensor.dtype)(tf.reshape(tensor, [-1]))


@functools.cache
def _traced_once(function: Callable[[Tensor], Tensor], dtype: Any) -> Any:
    """Returns a function for all vectors of a dtype, which calls share.

    Its hundred operations would else be traced for each tensor of a model.
    """
    return tf.function(
        function,
        input_signature=[tf.TensorSpec([None], dtype)],
        # Else the optimizer of graphs works on a copy for each tensor.
        experimental_attributes={"_noinline": True},
        autograph=False,
    )


def _brief(tensor: Tensor) -> Tensor:
    bits, infinity = own_magnitude_bits(tensor)
    largest = _largest(bits)

    def counted() -> tuple[Tensor, Tensor, Tensor]:
        finite = tf.where(bits < infinity, bits, 0)
        return (
            _count(bits > infinity),
            _count(tf.equal(bits, infinity)),
            _largest(finite),
        )

    # As good as always nothing is inf or nan, and two passes are enough.
    none = tf.zeros([], tf.float64)
    nan, inf, amax = tf.cond(
        largest < infinity, lambda: (none, none, largest), counted
    )
    if amax.dtype == tf.int16:
        amax = magnitude_bits(tf.bitcast(amax, tensor.dtype))
    return tf.stack([_size(bits), nan, inf, _zeros(bits), _value(amax)])


def _full(tensor: Tensor) -> Tensor:
    bits = magnitude_bits(tensor)
    finite = tf.where(bits < INFINITY_BITS, bits, 0)
    unit = _unit(finite)
    power = _power(as_float32(finite) * unit)
    per_format: list[Tensor] = []
    for name in FORMATS:
        per_format += _in_format(finite, float_format(name))
    exponents = tf.raw_ops.DenseBincount(
        input=biased_exponents(finite),
        size=EXPONENT_COUNT,
        weights=tf.zeros([0], tf.int32),
        binary_output=False,
    )
    return tf.concat(
        [
            tf.stack(
                [
                    _size(bits),
                    _count(bits > INFINITY_BITS),
                    _count(tf.equal(bits, INFINITY_BITS)),
                    _zeros(bits),
                    _value(_largest(finite)),
                    _value(_smallest(bits)),
                    power / tf.cast(unit, tf.float64) ** 2,
                    *per_format,
                ]
            ),
            tf.cast(exponents, tf.float64),
        ],
        axis=0,
    )


def decoded(vector: np.ndarray) -> TensorStatistics:
    """Returns the statistics in a vector.

    Args:
        vector: Of `BRIEF_LENGTH` or `FULL_LENGTH`.
    """
    size, nan, inf, zero, amax = vector[:BRIEF_LENGTH]
    brief = TensorStatistics(
        size=int(size),
        nan=int(nan),
        inf=int(inf),
        zero=int(zero),
        amax=float(amax),
    )
    if len(vector) == BRIEF_LENGTH:
        return brief
    smallest, power, *rest = vector[BRIEF_LENGTH:]
    formats = {}
    for name in FORMATS:
        values, rest = rest[: len(_PER_FORMAT)], rest[len(_PER_FORMAT) :]
        formats[name] = _decoded_format(values)
    exponents = {
        index - EXPONENT_BIAS: int(count) for index, count in enumerate(rest)
    }
    # What is zero, inf or nan is counted as 0 there.
    exponents[-EXPONENT_BIAS] -= brief.size - brief.nonzero
    finite_count = brief.size - brief.nonfinite
    return dataclasses.replace(
        brief,
        smallest=float(smallest),
        rms=math.sqrt(power / finite_count) if finite_count else 0.0,
        formats=formats,
        exponents={k: v for k, v in exponents.items() if v},
    )


def _decoded_format(values: Sequence[float]) -> InFormat:
    underflow, subnormal, overflow, noise = values
    return InFormat(
        underflow=int(underflow),
        subnormal=int(subnormal),
        overflow=int(overflow),
        noise=float(noise),
    )


def is_zero(tensor: Tensor) -> Tensor:
    """Returns where values are zero, and not subnormal.

    Args:
        tensor: A float tensor of any shape.
    """
    return tf.equal(magnitude_bits(tensor), 0)


def _size(bits: Tensor) -> Tensor:
    return tf.cast(tf.size(bits), tf.float64)


def _zeros(bits: Tensor) -> Tensor:
    return _count(tf.equal(bits, 0))


def _largest(bits: Tensor) -> Tensor:
    """Returns the largest of magnitudes as bits; 0 if there are none."""
    return tf.maximum(tf.reduce_max(bits), 0)  # of no integers: the least


def _smallest(bits: Tensor) -> Tensor:
    """Returns the smallest nonzero magnitude as bits; inf if there is none."""
    smallest = tf.reduce_min(tf.where(bits > 0, bits, INFINITY_BITS))
    return tf.minimum(smallest, INFINITY_BITS)  # of no integers: the largest


def _count(flags: Tensor) -> Tensor:
    return tf.cast(tf.reduce_sum(tf.cast(flags, tf.int32)), tf.float64)


def _value(bits: Tensor) -> Tensor:
    """Returns the float64 value of the bits of a float32 magnitude.

    By its parts: a cast would flush a subnormal number to zero.
    """
    exponent = biased_exponents(bits)
    fraction = tf.bitwise.bitwise_and(bits, (1 << FRACTION_BITS) - 1)
    leading = tf.where(exponent > 0, 1 << FRACTION_BITS, 0)
    power = tf.maximum(exponent, 1) - EXPONENT_BIAS - FRACTION_BITS
    value = tf.cast(fraction + leading, tf.float64) * power_of_two(power)
    infinity = tf.constant(math.inf, tf.float64)
    return tf.where(tf.equal(bits, INFINITY_BITS), infinity, value)


def _unit(finite: Tensor) -> Tensor:
    """Returns a power of two, about 1 / the largest of some magnitudes.

    Squares of values times this neither overflow nor vanish.
    """
    exponent = tf.clip_by_value(biased_exponents(_largest(finite)), 1, 253)
    return as_float32(tf.bitwise.left_shift(254 - exponent, FRACTION_BITS))


def _power(values: Tensor) -> Tensor:
    return tf.reduce_sum(tf.cast(values, tf.float64) ** 2)


def _in_format(finite: Tensor, form: FloatFormat) -> list[Tensor]:
    """Returns what `InFormat` holds, of finite magnitudes as bits."""
    overflows = finite >= form.first_nonfinite
    becomes_zero = (finite > 0) & (finite < form.first_nonzero)
    becomes_subnormal = (finite >= form.first_nonzero) & (
        finite < form.first_normal
    )
    kept = tf.where(overflows, 0, finite)
    unit = _unit(kept)
    values = as_float32(kept)
    lost = (values - _rounded(kept, values, form)) * unit
    power = _power(values * unit)
    return [
        _count(becomes_zero),
        _count(becomes_subnormal),
        _count(overflows),
        tf.math.divide_no_nan(_power(lost), power),
    ]


def _rounded(bits: Tensor, values: Tensor, form: FloatFormat) -> Tensor:
    """Returns magnitudes rounded to a format.

    By bits and not by casts: XLA is free to leave out a cast to fewer bits that
    is cast back at once.
    """
    normal = as_float32(rounded_bits(bits, form))
    if form.smallest_subnormal < _SMALLEST_NORMAL:  # of float32: flushed
        return normal
    step = form.smallest_subnormal
    subnormal = tf.round(values / step) * step
    return tf.where(values < form.smallest_normal, subnormal, normal)
