"""What an update has changed: one vector for each variable, in one tensor.

A weight of the magnitude 2**e has an ulp of 2**(e - f) in a format with f bits
of fraction, and e is at least that of the smallest normal number. An update of
less than half of it changes nothing. All of it is exact: exponents are those of
the bits, and tiny numbers, which the processor would flush to zero, are
multiplied by a power of two first.
"""

import math

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.float_bits import EXPONENT_BIAS
from tf_mixprec.diagnostics.float_bits import FRACTION_BITS
from tf_mixprec.diagnostics.float_bits import as_float32
from tf_mixprec.diagnostics.float_bits import biased_exponents
from tf_mixprec.diagnostics.float_bits import float32_bits
from tf_mixprec.diagnostics.float_bits import rounded_bits
from tf_mixprec.diagnostics.float_bits import without_sign
from tf_mixprec.numerics.formats import FloatFormat
from tf_mixprec.numerics.formats import float_format

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

WHAT_IF = ("bfloat16", "float16")  # the formats a weight could be stored in
COLUMNS = ("with_gradient", "dead", "dead_bfloat16", "dead_float16", "median")
SAMPLE = 2**16  # elements of a variable that a median is of, at the most

_LIFT = 64  # powers of two by which tiny numbers are multiplied
_TINY = 114  # biased exponent: all that are below the normal float16 numbers


def statistics(before: Tensor, after: Tensor, has_gradient: Tensor) -> Tensor:
    """Returns `COLUMNS` of one variable as a float64 vector.

    Args:
        before: The values before the step, of any float dtype and shape.
        after: The values after it, in the dtype in which they are kept.
        has_gradient: Bool tensor of that shape: whether the element had a
            gradient other than zero.

    Returns:
        How many elements had a gradient; of how many of these the value is the
        same after the step; of how many it would be if they were stored in
        `WHAT_IF`; and the median of their |change| / |value|, nan if there is
        none.
    """
    counts = [
        _count(has_gradient),
        _count(has_gradient & _unchanged(before, after)),
    ]
    old, new = float32_bits(before), float32_bits(after)
    for name in WHAT_IF:
        lost = is_below_half_ulp(old, new, float_format(name))
        counts.append(_count(has_gradient & lost))
    return tf.stack([*counts, _median_ratio(before, after, has_gradient)])


def is_below_half_ulp(old: Tensor, new: Tensor, form: FloatFormat) -> Tensor:
    """Returns whether changes are less than half an ulp of rounded values.

    Args:
        old: Float32 values as int32 bits.
        new: What they are changed to, as bits.
        form: The format whose ulp counts.

    Returns:
        A bool tensor: |new - old| < ulp(old rounded to the format) / 2. Beyond
        the largest number of the format its ulp counts.
    """
    exponent = _rounded_exponent(without_sign(old), form)
    is_tiny = exponent < _TINY
    # In one step: an exponent below 1 is none of a float32.
    lifted = exponent - form.fraction_bits - 1 + tf.where(is_tiny, _LIFT, 0)
    half_ulp = as_float32(tf.bitwise.left_shift(lifted, FRACTION_BITS))
    old_value, new_value = (
        tf.where(is_tiny, _lifted(each), as_float32(each))
        for each in (old, new)
    )
    change, error = _difference(new_value, old_value)
    return (tf.abs(change) < half_ulp) | (
        tf.equal(tf.abs(change), half_ulp) & (error * tf.sign(change) < 0)
    )


def _difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a - b rounded, and what it lacks (Knuth's two-sum)."""
    difference = a - b
    of_b = difference - a
    return difference, (a - (difference - of_b)) - (b + of_b)


def _rounded_exponent(bits: Tensor, form: FloatFormat) -> Tensor:
    """Returns the biased exponents of magnitudes, rounded to a format."""
    return tf.clip_by_value(
        biased_exponents(rounded_bits(bits, form)),
        _biased_exponent(form.smallest_normal),
        _biased_exponent(form.largest),
    )


def _biased_exponent(value: float) -> int:
    return math.frexp(value)[1] - 1 + EXPONENT_BIAS


def _lifted(bits: Tensor) -> Tensor:
    """Returns float32 values times 2**64, subnormal ones included."""
    magnitude = without_sign(bits)
    # A subnormal number is its bits times 2**-149.
    subnormal = tf.cast(magnitude, tf.float32) * 2.0 ** (_LIFT - 149)
    lifted = tf.where(
        magnitude < 1 << FRACTION_BITS,
        subnormal,
        as_float32(magnitude) * 2.0**_LIFT,
    )
    return tf.where(bits < 0, -lifted, lifted)


def _unchanged(before: Tensor, after: Tensor) -> Tensor:
    """Returns where two tensors are equal, zeros of either sign included."""
    if before.dtype.size > 4:
        return tf.equal(before, after)
    # By bits: two subnormal numbers would be equal, both flushed to zero.
    old, new = float32_bits(before), float32_bits(after)
    both_zero = tf.equal(
        tf.bitwise.bitwise_or(without_sign(old), without_sign(new)), 0
    )
    return tf.equal(old, new) | both_zero


def _median_ratio(
    before: Tensor, after: Tensor, has_gradient: Tensor
) -> Tensor:
    """Returns the median of |after - before| / |before|, of a sample."""
    size = before.shape.num_elements()
    if not size:
        return tf.constant(math.nan, tf.float64)
    stride = max(1, -(-size // SAMPLE))
    old, new, counts = (
        tf.reshape(each, [-1])[::stride]
        for each in (before, after, has_gradient)
    )
    old, new = (tf.cast(each, tf.float32) for each in (old, new))
    counts = counts & tf.not_equal(old, 0)
    ratios = tf.abs(new - old) / tf.abs(old)
    ordered = tf.sort(tf.where(counts, ratios, math.inf))
    number = tf.reduce_sum(tf.cast(counts, tf.int32))
    middle = tf.stack([tf.maximum(number - 1, 0) // 2, number // 2])
    median = tf.reduce_mean(tf.cast(tf.gather(ordered, middle), tf.float64))
    return tf.where(number > 0, median, tf.constant(math.nan, tf.float64))


def _count(flags: Tensor) -> Tensor:
    return tf.cast(tf.reduce_sum(tf.cast(flags, tf.int64)), tf.float64)
