"""Normalizations with float32 statistics."""

from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.layers import fused
from tf_mixprec.layers.float32_inside import Float32Inside
from tf_mixprec.layers.float32_inside import widened_tensors


@keras.saving.register_keras_serializable("tf_mixprec")
class LayerNormalization(Float32Inside, keras.layers.LayerNormalization):
    """Layer normalization in float32, inputs above 65504 included.

    Takes the arguments of `keras.layers.LayerNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.LayerNormalization(dtype="mixed_float16")
    >>> layer(np.array([[70000.0, 60000.0]])).numpy().tolist()
    [[1.0, -1.0]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class RMSNormalization(Float32Inside, keras.layers.RMSNormalization):
    """RMS normalization in float32, inputs above 65504 included.

    Takes the arguments of `keras.layers.RMSNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.RMSNormalization(dtype="mixed_float16")
    >>> layer(np.array([[70000.0, -70000.0]])).numpy().tolist()
    [[1.0, -1.0]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class UnitNormalization(Float32Inside, keras.layers.UnitNormalization):
    """Unit normalization in float32, with a finite gradient at zero.

    In float16 the square of 256 overflows, and so does the gradient of a zero
    vector, 1e12; under policies that compute in 16 bits it is 0 here. Takes the
    arguments of `keras.layers.UnitNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.UnitNormalization(dtype="mixed_float16")
    >>> layer(np.full((1, 4), 300.0)).numpy().tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """

    def call(self, inputs: Tensor) -> Tensor:
        """Returns the inputs divided by their Euclidean norm."""
        square_sum = ops.sum(ops.square(inputs), axis=self.axis, keepdims=True)
        # The bound changes no result: it keeps the gradient of `rsqrt` finite
        # where the next line does not use it.
        inv_norm = ops.rsqrt(ops.maximum(square_sum, 1e-25))
        inv_norm = ops.minimum(inv_norm, 1e12)
        if self._computes_in_16_bits:
            inputs = ops.where(
                ops.equal(square_sum, 0), ops.stop_gradient(inputs), inputs
            )
        return inputs * inv_norm


@keras.saving.register_keras_serializable("tf_mixprec")
class BatchNormalization(Float32Inside, keras.layers.BatchNormalization):
    """Batch normalization with float32 statistics.

    Inputs above 65504 do not poison the moving statistics. 16-bit inputs with
    channels in the last axis take one fused operation, in a third of the time.
    Takes the arguments of `keras.layers.BatchNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.BatchNormalization(dtype="mixed_float16")
    >>> layer(np.array([[70000.0], [60000.0]]), training=True).numpy().tolist()
    [[1.0], [-1.0]]
    """

    @property
    def autocast(self) -> bool:
        """Whether Keras casts inputs; 16-bit ones are taken as they are."""
        return self._autocast and not self._computes_in_16_bits

    @autocast.setter
    def autocast(self, value: bool) -> None:
        self._autocast = value

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Returns the normalized inputs, and moves the statistics."""
        uses_batch = bool(training and self.trainable)
        if not self._is_fused(inputs, mask):
            inputs = widened_tensors(inputs, "float32")
            return super().call(inputs, training=training, mask=mask)
        moving_mean = ops.cast(self.moving_mean, "float32")
        moving_variance = ops.cast(self.moving_variance, "float32")
        outputs, mean, variance = fused.batch_normalization(
            inputs,
            ops.cast(self.gamma, "float32")
            if self.scale
            else ops.ones_like(moving_mean),
            ops.cast(self.beta, "float32")
            if self.center
            else ops.zeros_like(moving_mean),
            None if uses_batch else (moving_mean, moving_variance),
            self.epsilon,
        )
        if uses_batch:
            keep, take = self.momentum, 1.0 - self.momentum
            self.moving_mean.assign(moving_mean * keep + mean * take)
            self.moving_variance.assign(
                moving_variance * keep + variance * take
            )
        return outputs

    def _inside(self, structure: Any) -> Any:
        return structure

    def _is_fused(self, inputs: Tensor, mask: Tensor | None) -> bool:
        return (
            mask is None
            and self._computes_in_16_bits
            and not self.synchronized
            and not getattr(self, "renorm", False)  # Keras 3.13 and later
            and self.axis in (-1, len(inputs.shape) - 1)
            and fused.normalizes_batches(inputs)
        )


@keras.saving.register_keras_serializable("tf_mixprec")
class GroupNormalization(Float32Inside, keras.layers.GroupNormalization):
    """Group normalization in float32, inputs above 65504 included.

    Takes the arguments of `keras.layers.GroupNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.GroupNormalization(groups=1, dtype="mixed_float16")
    >>> layer(np.array([[[70000.0], [60000.0]]])).numpy().tolist()
    [[[1.0], [-1.0]]]
    """
