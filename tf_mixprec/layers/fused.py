"""Single operations of TensorFlow, and of XLA, for what Keras composes.

Each has float32 inside and 16 bits outside, so that no pass over a tensor is
made to cast it. On other backends, and where one does not fit, Keras's own code
does the work.
"""

import math
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import hardware

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def normalizes_batches(x: Tensor) -> bool:
    """Returns whether `batch_normalization` takes a tensor.

    Args:
        x: The inputs, with channels in the last axis.
    """
    return (
        keras.backend.backend() == "tensorflow"
        and isinstance(x, tf.Tensor)
        and has_16_bits(dtype_name(x))
        and x.shape.rank is not None
        and x.shape[-1] is not None
    )


def batch_normalization(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    statistics: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalizes a batch by its own statistics, or by those given.

    Args:
        x: 16-bit tensor of any rank, with c channels in the last axis.
        gamma: Float32 tensor of shape (c,): the scale.
        beta: Float32 tensor of shape (c,): the offset.
        statistics: Mean and variance, float32 of shape (c,), to normalize by;
            `None` for those of the batch.
        epsilon: What is added to the variance.

    Returns:
        The normalized batch in the dtype of `x`; its mean and its variance, or
        those given, in float32.
    """
    shape = tf.shape(x)
    channels = x.shape[-1]
    flat = tf.reshape(x, [-1, 1, 1, channels])
    empty = tf.zeros([0], tf.float32)
    mean, variance = statistics or (empty, empty)
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=flat,
        scale=gamma,
        offset=beta,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
        is_training=statistics is None,
    )
    if statistics is None:
        # The operation estimates the variance of a population.
        count = tf.cast(tf.shape(flat)[0], tf.float32)
        variance *= tf.maximum(count - 1.0, 1.0) / tf.maximum(count, 1.0)
    y = tf.reshape(y, shape)
    y.set_shape(x.shape)
    return y, mean, variance


def _gelu(x: Any) -> Any:
    wide = keras.activations.gelu(tf.cast(x, tf.float32))
    return tf.cast(wide, x.dtype)


if keras.backend.backend() == "tensorflow":
    _compiled_gelu = tf.function(_gelu, autograph=False, jit_compile=True)


# Not named `gelu`: Keras would write that in a config, and read its own.
@keras.saving.register_keras_serializable("tf_mixprec")
def wide_gelu(x: Tensor) -> Tensor:
    """Returns `keras.activations.gelu(x)`, of 16 bits by way of float32.

    Args:
        x: Tensor of any shape and float dtype.
    """
    if (
        keras.backend.backend() != "tensorflow"
        or not isinstance(x, tf.Tensor)
        or not has_16_bits(dtype_name(x))
    ):
        return keras.activations.gelu(x)
    # XLA makes one pass of it, for each shape another one: only the batch may
    # have several sizes.
    if _features(x) >= 1024 and hardware.runs_on_cpu():
        return _compiled_gelu(x)
    return _gelu(x)


def _features(x: Any) -> int:
    """Returns the numbers of an example, 0 where that is not known."""
    if not x.shape.rank or not x.shape[1:].is_fully_defined():
        return 0
    return math.prod(x.shape[1:].as_list())
