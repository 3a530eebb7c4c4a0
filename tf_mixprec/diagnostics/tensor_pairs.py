"""How far one tensor is from another, in a graph or under XLA, as a vector."""

import dataclasses
import math

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.float_bits import EXPONENT_BIAS
from tf_mixprec.diagnostics.float_bits import biased_exponents
from tf_mixprec.diagnostics.float_bits import magnitude_bits
from tf_mixprec.diagnostics.float_bits import power_of_two
from tf_mixprec.numerics.formats import float_format

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_SAMPLE = 2**16
PAIR_LENGTH = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairStatistics:
    """How far values are from reference values, element by element.

    Args:
        size: How many values.
        nonfinite: How many are inf or nan where the reference is finite.
        relative_error: The norm of the difference over that of the reference;
            nan if that is 0.
        max_error: The largest absolute difference; nan, as those of ulps are,
            where all values are inf or nan.
        median_ulps: The median absolute difference, in ulps of the reference
            in some dtype; of at most 65,536 values, evenly spaced.
        most_ulps: What 99 % of the differences are at most.
        cosine: The cosine between the two; 0 if all values are lost, nan if
            they are 0 in float32 too.
        norm_ratio: The norm of the values over that of the reference.
        norm: The norm of the reference.
    """

    size: int
    nonfinite: int
    relative_error: float
    max_error: float
    median_ulps: float
    most_ulps: float
    cosine: float
    norm_ratio: float
    norm: float


def pair_statistics(values: Tensor, reference: Tensor, dtype: str) -> Tensor:
    """Returns how far values are from a reference, for `decoded_pair`.

    What is not finite in either counts for nothing but `nonfinite`.

    Args:
        values: Float tensor of any shape.
        reference: Float32 tensor of that shape.
        dtype: The dtype whose ulps count.

    Returns:
        Float64 vector of `PAIR_LENGTH`.
    """
    a, b = (tf.cast(each, tf.float64) for each in (values, reference))
    is_finite = tf.math.is_finite(a) & tf.math.is_finite(b)
    bad = tf.math.is_finite(b) & ~tf.math.is_finite(a)
    a, b = (tf.where(is_finite, each, 0.0) for each in (a, b))
    error = tf.abs(a - b)
    ulps = error / _ulp(reference, dtype)
    return tf.stack(
        [
            tf.cast(tf.size(a), tf.float64),
            tf.reduce_sum(tf.cast(bad, tf.float64)),
            tf.reduce_sum(error * error),
            _largest(error),
            *_quantiles(ulps, (0.5, 0.99)),
            tf.reduce_sum(a * b),
            tf.reduce_sum(a * a),
            tf.reduce_sum(b * b),
        ]
    )


def _largest(values: Tensor) -> Tensor:
    return tf.maximum(tf.reduce_max(values), 0.0)  # of none: the least


def _quantiles(values: Tensor, shares: tuple[float, ...]) -> list[Tensor]:
    """Returns the smallest of evenly spaced values that exceed shares."""
    size = values.shape.num_elements()
    if not size:
        return [tf.constant(0.0, tf.float64)] * len(shares)
    stride = -(-size // _SAMPLE)
    ordered = tf.sort(tf.reshape(values, [-1])[::stride])
    count = -(-size // stride)
    return [ordered[min(count - 1, int(share * count))] for share in shares]


def _ulp(reference: Tensor, dtype: str) -> Tensor:
    """Returns the distance of neighbors at each value, in float64."""
    form = float_format(dtype)
    lowest = math.frexp(form.smallest_normal)[1] - 1
    exponents = biased_exponents(magnitude_bits(reference)) - EXPONENT_BIAS
    return power_of_two(tf.maximum(exponents, lowest) - form.fraction_bits)


def decoded_pair(vector: np.ndarray) -> PairStatistics:
    """Returns the statistics in a vector.

    Args:
        vector: From `pair_statistics`.
    """
    size, bad, squared, error, median, most, product, own, other = (
        float(each) for each in vector
    )
    if size and bad == size:
        error = median = most = math.nan
    norms = math.sqrt(own) * math.sqrt(other)
    without_direction = 0.0 if other > 0 else math.nan
    return PairStatistics(
        size=int(size),
        nonfinite=int(bad),
        relative_error=math.sqrt(squared / other) if other > 0 else math.nan,
        max_error=error,
        median_ulps=median,
        most_ulps=most,
        cosine=product / norms if norms > 0 else without_direction,
        norm_ratio=math.sqrt(own / other) if other > 0 else math.nan,
        norm=math.sqrt(other),
    )
