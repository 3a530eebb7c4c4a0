"""Resizing of images."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


@keras.saving.register_keras_serializable("tf_mixprec")
class UpSampling2D(Float32Inside, keras.layers.UpSampling2D):
    """Upsampling in float32.

    XLA does not compile the gradient of a float16 bilinear resize. Takes the
    arguments of `keras.layers.UpSampling2D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.UpSampling2D(
    ...     interpolation="bilinear", dtype="mixed_float16"
    ... )
    >>> layer(np.ones((1, 2, 2, 1))).shape
    TensorShape([1, 4, 4, 1])
    """
