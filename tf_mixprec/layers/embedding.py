"""Rows of a table, looked up by exact ids."""

from typing import Any

import keras

from tf_mixprec.layers.float32_inside import PolicyOutside


@keras.saving.register_keras_serializable("tf_mixprec")
class Embedding(PolicyOutside, keras.layers.Embedding):
    """Embedding that looks up first and casts afterwards.

    Under a mixed policy Keras casts the whole table to 16 bits to look up some
    rows of it. Ids are never cast to 16 bits. Takes the arguments of
    `keras.layers.Embedding`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Embedding(5000, 2, dtype="mixed_float16")
    >>> layer(np.array([[2049.0, 4999.0]])).dtype
    tf.float16
    """

    @property
    def compute_dtype(self) -> str:
        """The dtype inside: wide enough for the table as it is."""
        dtype, table = super().compute_dtype, self.variable_dtype
        if dtype == table:
            return dtype
        return keras.backend.result_type(dtype, table)

    def quantize(
        self, mode: Any = None, type_check: bool = True, **kwargs: Any
    ) -> None:
        """Quantizes the table, as `keras.layers.Embedding` does."""
        # Keras refuses subclasses, because they may look up in another way.
        type_check = type_check and type(self) is not Embedding
        super().quantize(mode, type_check=type_check, **kwargs)

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        """Returns rows of the quantized table in the dtype of the policy."""
        return self._outside(super().quantized_call(*args, **kwargs))
