"""Random bits that follow from a seed and a step, and from nothing else."""

from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Stream:
    """Random bits of one variable in one step.

    A run that is resumed draws what it would have drawn, and so does every
    replica. By Philox on every device: TensorFlow would choose by device.

    Args:
        seed: Of the run.
        index: Of the variable.
        iterations: Scalar int variable, in steps.
    """

    def __init__(self, seed: int, index: int, iterations: Variable):
        self._key = (seed << 24) + index
        self._iterations = iterations
        self._drawn = 0

    def next(self, shape: Any) -> Tensor:
        """Returns uniform int32 from 0 to 2**16 - 1, new ones at each call.

        Args:
            shape: Of the result.
        """
        step = tf.cast(tf.convert_to_tensor(self._iterations), tf.int64)
        # Writes of one step must not share bits: their errors would add up.
        draw = step * 256 + self._drawn
        self._drawn += 1
        shape = tf.convert_to_tensor(shape, tf.int32)  # also of a scalar
        count = tf.reduce_prod(shape)
        words = tf.random.stateless_uniform(
            [(count + 1) // 2],
            seed=tf.stack([tf.constant(self._key, tf.int64), draw]),
            minval=None,
            maxval=None,
            dtype=tf.int32,
            alg="philox",
        )
        # Each word is good for two elements; to draw is what takes the time.
        halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
        return tf.reshape(tf.cast(halves, tf.int32), shape)
