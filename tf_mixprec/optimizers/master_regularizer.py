"""A weight's regularizer whose gradient is that of the float32 master."""

from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened


@keras.saving.register_keras_serializable("tf_mixprec")
class MasterRegularizer(keras.regularizers.Regularizer):
    """Adds a penalty to the loss, and its gradient to that of the master.

    The gradient of a penalty is small beside that of the data: added to it in
    16 bits, most of it is rounded away. So the loss gets the penalty without a
    gradient, and `MasterWeightOptimizer` adds the gradient in float32, where
    it stands before clipping.

    Args:
        regularizer: A regularizer, its name or its config.
    """

    def __init__(self, regularizer: Any):
        self.regularizer: Any = keras.regularizers.get(regularizer)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the penalty in float32, without a gradient."""
        return ops.stop_gradient(self.regularizer(widened(x)))

    def get_config(self) -> dict[str, Any]:
        """Returns the regularizer inside."""
        return {"regularizer": keras.regularizers.serialize(self.regularizer)}
