"""Values that are rounded to 16 bits outside of a loop, for use in it.

A value from outside of a loop that is cast in it is cast in each turn. Cast
outside, its gradient would be summed over the turns in 16 bits, where a sum of
equal terms stops growing at 256 of them in bfloat16, at 2048 in float16. So its
bits come in, as integers, which have no gradient; the gradient goes to the
float32 value beside them.
"""

from typing import Any

import keras

from tf_mixprec._typing import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def bits_of(rounded: Tensor) -> Tensor:
    """Returns the bits of a 16-bit tensor, as integers without a gradient.

    Args:
        rounded: Tensor of float16 or bfloat16, outside of the loop.
    """
    return tf.bitcast(tf.stop_gradient(rounded), tf.uint16)


def from_bits(bits: Tensor, wide: Tensor, dtype: Any) -> Tensor:
    """Returns the 16-bit tensor, whose gradient in float32 goes to `wide`.

    Args:
        bits: What `bits_of` returned.
        wide: The tensor in float32, of the same shape, outside of the loop.
        dtype: Its dtype, float16 or bfloat16.
    """

    @tf.custom_gradient
    def rounded(bits: Tensor, wide: Tensor) -> tuple[Tensor, object]:
        def gradient(of_rounded: Tensor) -> tuple[None, Tensor]:
            return None, tf.cast(of_rounded, wide.dtype)

        return tf.bitcast(bits, dtype), gradient

    return rounded(bits, wide)
