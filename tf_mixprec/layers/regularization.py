"""Penalties on activations."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


@keras.saving.register_keras_serializable("tf_mixprec")
class ActivityRegularization(
    Float32Inside, keras.layers.ActivityRegularization
):
    """Activity regularization whose loss is float32.

    A float16 sum of squares overflows at 65504, and `fit` cannot add a float16
    loss to a float32 one. Takes the arguments of
    `keras.layers.ActivityRegularization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.ActivityRegularization(l2=1.0, dtype="mixed_float16")
    >>> _ = layer(np.full((1, 100), 100.0))
    >>> float(layer.losses[0])
    1000000.0
    """
