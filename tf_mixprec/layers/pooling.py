"""Averages over windows and over whole inputs."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


@keras.saving.register_keras_serializable("tf_mixprec")
class AveragePooling1D(Float32Inside, keras.layers.AveragePooling1D):
    """Average pooling that sums in float32.

    In float16 on CPUs, Keras's average of numbers around 0.5 is 1 for windows
    of some thousand elements. Takes the arguments of
    `keras.layers.AveragePooling1D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.AveragePooling1D(4096, dtype="mixed_float16")
    >>> x = np.tile([0.25, 0.75], 2048).reshape(1, 4096, 1)
    >>> layer(x).numpy().tolist()
    [[[0.5]]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class AveragePooling2D(Float32Inside, keras.layers.AveragePooling2D):
    """Average pooling that sums in float32.

    See `mp.layers.AveragePooling1D`. Takes the arguments of
    `keras.layers.AveragePooling2D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.AveragePooling2D(64, dtype="mixed_float16")
    >>> x = np.tile([0.25, 0.75], 2048).reshape(1, 64, 64, 1)
    >>> layer(x).numpy().tolist()
    [[[[0.5]]]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class AveragePooling3D(Float32Inside, keras.layers.AveragePooling3D):
    """Average pooling that sums in float32.

    See `mp.layers.AveragePooling1D`. Takes the arguments of
    `keras.layers.AveragePooling3D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.AveragePooling3D(16, dtype="mixed_float16")
    >>> x = np.tile([0.25, 0.75], 2048).reshape(1, 16, 16, 16, 1)
    >>> layer(x).numpy().tolist()
    [[[[[0.5]]]]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class GlobalAveragePooling1D(
    Float32Inside, keras.layers.GlobalAveragePooling1D
):
    """Global average pooling in float32, inputs above 65504 included.

    With a mask Keras divides a sum in the compute dtype, which overflows, by a
    count, which is rounded from 2049 in float16. Takes the arguments of
    `keras.layers.GlobalAveragePooling1D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.GlobalAveragePooling1D(dtype="mixed_float16")
    >>> layer(np.full((1, 4096, 1), 100.0)).numpy().tolist()
    [[100.0]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class GlobalAveragePooling2D(
    Float32Inside, keras.layers.GlobalAveragePooling2D
):
    """Global average pooling in float32, inputs above 65504 included.

    Takes the arguments of `keras.layers.GlobalAveragePooling2D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.GlobalAveragePooling2D(dtype="mixed_float16")
    >>> layer(np.full((1, 64, 64, 1), 100.0)).numpy().tolist()
    [[100.0]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class GlobalAveragePooling3D(
    Float32Inside, keras.layers.GlobalAveragePooling3D
):
    """Global average pooling in float32, inputs above 65504 included.

    Takes the arguments of `keras.layers.GlobalAveragePooling3D`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.GlobalAveragePooling3D(dtype="mixed_float16")
    >>> layer(np.full((1, 16, 16, 16, 1), 100.0)).numpy().tolist()
    [[100.0]]
    """
