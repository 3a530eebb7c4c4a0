"""An activity regularizer that does not overflow."""

from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened


@keras.saving.register_keras_serializable("tf_mixprec")
class WidenedRegularizer(keras.regularizers.Regularizer):
    """Computes the penalty of another regularizer in at least float32.

    A float16 sum of squares overflows at 65504.

    Args:
        regularizer: A regularizer, its name or its config.
    """

    def __init__(self, regularizer: Any):
        inner = keras.regularizers.get(regularizer)
        if isinstance(inner, WidenedRegularizer):
            inner = inner.regularizer
        self.regularizer: Any = inner

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the penalty in float32, or float64 for float64."""
        return self.regularizer(widened(x))

    def get_config(self) -> dict[str, Any]:
        """Returns the regularizer inside."""
        return {"regularizer": keras.regularizers.serialize(self.regularizer)}
