"""Activations that need the range and the digits of float32."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


@keras.saving.register_keras_serializable("tf_mixprec")
class Softmax(Float32Inside, keras.layers.Softmax):
    """Softmax in float32.

    Logits above 65504 stay what they are, and differences between large logits
    are not rounded. Takes the arguments of `keras.layers.Softmax`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Softmax(dtype="mixed_float16")
    >>> layer(np.array([[70000.0, 0.0]])).numpy().tolist()
    [[1.0, 0.0]]
    """
