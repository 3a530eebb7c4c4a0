"""Products of two inputs."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


@keras.saving.register_keras_serializable("tf_mixprec")
class Dot(Float32Inside, keras.layers.Dot):
    """Dot product that sums in float32.

    With `normalize=True` the norms are float32 as well: in float16 the square
    of 256 overflows. Takes the arguments of `keras.layers.Dot`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Dot(axes=1, normalize=True, dtype="mixed_float16")
    >>> x = np.full((1, 4), 300.0)
    >>> layer([x, x]).numpy().tolist()
    [[1.0]]
    """
