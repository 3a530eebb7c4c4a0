"""A change of dtype, as a layer."""

from typing import Any

import keras

from tf_mixprec.layers.float32_inside import PolicyOutside


@keras.saving.register_keras_serializable("tf_mixprec")
class CastTo(PolicyOutside):
    """Casts floating-point inputs; integers and booleans stay as they are.

    Args:
        dtype: The name of a float dtype, or a policy: its output dtype counts.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If `dtype` is none of floating-point numbers.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.CastTo("bfloat16")
    >>> layer(np.ones(2)).dtype, layer(np.array([1, 2])).dtype
    (tf.bfloat16, tf.int64)
    """

    def __init__(self, dtype: Any, **kwargs: Any):
        # Not by Keras, which casts to the compute dtype.
        super().__init__(dtype=dtype, autocast=False, **kwargs)
        if not keras.backend.is_float_dtype(self.output_dtype):
            raise ValueError(
                "`dtype` must be one of floating-point numbers, because only "
                f"those are cast. Received: dtype={dtype!r}"
            )
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Returns the inputs, which are then cast like any output."""
        return inputs

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments; Keras's layers have `dtype` among them."""
        return super().get_config()
