"""The 16 bits that bfloat16 weights lack, saved as the float32 masters.

So a `tf.train.Checkpoint` means the same whatever the storage. What it needs of
TensorFlow has no public name: `tests/optimizers/test_tensorflow_internals.py`
fails when that moves.
"""

from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.numerics import rounding


class RemainderVariable(keras.Variable):
    """An int16 variable that is saved together with its weight.

    Args:
        weight: The bfloat16 variable.
        name: String.
    """

    def __init__(self, weight: Variable, name: str):
        self._weight = weight
        super().__init__(
            ops.zeros(weight.shape, "int16"),
            dtype="int16",
            trainable=False,
            name=name,
        )

    def _serialize_to_tensors(self) -> dict[str, Tensor]:
        master = rounding.combined(self._weight.value, self.value)
        return {"VARIABLE_VALUE": master}

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        master = restored_tensors["VARIABLE_VALUE"]
        self.assign(rounding.remainder(master))
        return self.value
