"""The bits of floats as integers, in a graph or under XLA.

Bits of magnitudes ascend with them, and have an order for subnormal numbers,
inf and nan too, where comparisons of floats flush the first to zero and drop
the last.
"""

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.formats import FloatFormat

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

FRACTION_BITS = 23  # of float32
EXPONENT_BIAS = 127
INFINITY_BITS = 0x7F800000
_NO_SIGN_16 = 0x7FFF
_INFINITY_OF_16_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80}


def float32_bits(values: Tensor) -> Tensor:
    """Returns the bits of values in float32, as int32.

    Args:
        values: Float tensor of any shape.
    """
    if values.dtype == tf.bfloat16:  # a cast could flush subnormal numbers
        upper = tf.cast(tf.bitcast(values, tf.int16), tf.int32)
        return tf.bitwise.left_shift(upper, 16)
    return tf.bitcast(tf.cast(values, tf.float32), tf.int32)


def without_sign(bits: Tensor) -> Tensor:
    """Returns the bits of the magnitudes.

    Args:
        bits: From `float32_bits`.
    """
    return tf.bitwise.bitwise_and(bits, 0x7FFFFFFF)


def magnitude_bits(values: Tensor) -> Tensor:
    """Returns the bits of the magnitudes of values in float32.

    Args:
        values: Float tensor of any shape.
    """
    return without_sign(float32_bits(values))


def own_magnitude_bits(values: Tensor) -> tuple[Tensor, int]:
    """Returns the bits of magnitudes in no more bits than the values have.

    Half as much to go through where values have 16.

    Args:
        values: Float tensor of any shape.

    Returns:
        Bits of the magnitudes, int16 of float16 and bfloat16, else int32 of
        float32; and those of inf.
    """
    if values.dtype.name not in _INFINITY_OF_16_BITS:
        return magnitude_bits(values), INFINITY_BITS
    bits = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int16), _NO_SIGN_16)
    return bits, _INFINITY_OF_16_BITS[values.dtype.name]


def as_float32(bits: Tensor) -> Tensor:
    """Returns the float32 values of bits.

    Args:
        bits: Int32 tensor.
    """
    return tf.bitcast(bits, tf.float32)


def biased_exponents(bits: Tensor) -> Tensor:
    """Returns the exponents of magnitudes, plus 127.

    Args:
        bits: From `magnitude_bits`.
    """
    return tf.bitwise.right_shift(bits, FRACTION_BITS)


def rounded_bits(bits: Tensor, form: FloatFormat) -> Tensor:
    """Returns magnitudes rounded to the fraction of a format, half to even.

    Where the format is subnormal it keeps fewer digits than these.

    Args:
        bits: From `magnitude_bits`.
        form: The format, narrower than float32.
    """
    dropped = FRACTION_BITS - form.fraction_bits
    last_kept = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, dropped), 1)
    rounded = bits + ((1 << (dropped - 1)) - 1) + last_kept
    return tf.bitwise.left_shift(
        tf.bitwise.right_shift(rounded, dropped), dropped
    )


def power_of_two(exponents: Tensor) -> Tensor:
    """Returns powers of two in float64.

    Args:
        exponents: Int32 tensor, from -1022 to 1023.
    """
    # 1023 and 52: the bias and the fraction bits of float64.
    bits = tf.bitwise.left_shift(
        tf.cast(exponents + 1023, tf.int64), tf.constant(52, tf.int64)
    )
    return tf.bitcast(bits, tf.float64)
