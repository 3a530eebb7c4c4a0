"""Preprocessing of raw numbers: pixels, years, measurements."""

from typing import Any

import keras

from tf_mixprec.layers.float32_inside import Float32Inside


class _InPipelines(Float32Inside):
    """In a `tf.data` pipeline, tensors are TensorFlow's on every backend."""

    def _outside(self, structure: Any) -> Any:
        if self.backend.name == keras.backend.backend():
            return super()._outside(structure)
        return self.backend.cast(structure, self.output_dtype)


@keras.saving.register_keras_serializable("tf_mixprec")
class Normalization(_InPipelines, keras.layers.Normalization):
    """Normalization of float32 inputs with float32 statistics.

    In float16 the years 2049 and 2050 are one number, and 70000 is infinite;
    mean and variance are rounded likewise. Takes the arguments of
    `keras.layers.Normalization`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Normalization(
    ...     mean=1e5, variance=1e4, dtype="mixed_float16"
    ... )
    >>> layer(np.array([[100000.0], [100100.0]])).numpy().tolist()
    [[0.0], [1.0]]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class Rescaling(_InPipelines, keras.layers.Rescaling):
    """Rescaling in float32.

    16-bit images reach 65535, which is infinite in float16. Takes the arguments
    of `keras.layers.Rescaling`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Rescaling(1 / 65535, dtype="mixed_float16")
    >>> layer(np.array([[65535]], "uint16")).numpy().tolist()
    [[1.0]]
    """
