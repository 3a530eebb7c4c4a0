"""Variables that steps write notes to: no state, so in no file."""

from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import keras_internals


def noted(shape: tuple[int, ...], dtype: str, name: str) -> Variable:
    """Returns a variable of zeros, which is the same on every replica.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Its name.
    """
    return keras.Variable(
        lambda shape, dtype: ops.zeros(shape, dtype),
        shape=shape,
        dtype=dtype,
        trainable=False,
        aggregation="only_first_replica",
        name=name,
    )


def on_this_replica(variable: Variable) -> Any:
    """Returns the component of a variable that the calling replica has."""
    return distribution.component_on_this_replica(
        keras_internals.held_variable(variable)
    )
