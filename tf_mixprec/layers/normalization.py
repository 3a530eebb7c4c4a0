"""Normalizations with float32 statistics."""

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.layers.float32_inside import Float32Inside


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
    """Batch normalization of float32 inputs.

    Inputs above 65504 do not poison the moving statistics. Takes the arguments
    of `keras.layers.BatchNormalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.BatchNormalization(dtype="mixed_float16")
    >>> layer(np.array([[70000.0], [60000.0]]), training=True).numpy().tolist()
    [[1.0], [-1.0]]
    """


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
