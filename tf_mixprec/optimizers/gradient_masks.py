"""Which elements of a variable have had a gradient in the last step."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers.noted_variables import noted
from tf_mixprec.optimizers.noted_variables import on_this_replica

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class GradientMasks:
    """A bool for each element of each variable, on the device.

    Args:
        variables: The variables that an optimizer updates.
        key_of: Returns what the optimizer knows a variable by.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        key_of: Callable[[Variable], Any],
    ):
        self._key_of = key_of
        self._masks: dict[Any, Variable] = {}
        for variable in variables:
            with distribution.colocated(variable):
                mask = noted(tuple(variable.shape), "bool", "has_gradient")
            self._masks[key_of(variable)] = mask

    def note(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        """Notes a step.

        Args:
            gradients: Dense, sparse or `None`, the same on every replica.
            variables: Their variables.
        """
        gradient_of = {
            self._key_of(variable): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        }
        for key, mask in self._masks.items():
            gradient = gradient_of.get(key)
            if gradient is None:
                value = tf.zeros(mask.shape, tf.bool)
            else:
                value = _is_nonzero(tf.convert_to_tensor(_dense(gradient)))
            on_this_replica(mask).assign(value)

    def of(self, variable: Variable) -> Variable:
        """Returns a bool variable of the shape of a variable."""
        return self._masks[self._key_of(variable)]


def _dense(gradient: Gradient) -> Any:
    if not gradient_lists.is_sparse(gradient):
        return gradient
    # Where slices of one row cancel out there is no gradient.
    return tf.math.unsorted_segment_sum(
        gradient.values, gradient.indices, gradient.dense_shape[0]
    )


def _is_nonzero(tensor: Any) -> Any:
    """Returns where a float tensor is not zero, by its bits.

    A comparison would not see subnormal numbers, which are flushed to zero.
    """
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[tensor.dtype.size]
    bits = tf.bitcast(tensor, integers)
    # Without the sign, which a zero can have.
    return tf.not_equal(tf.bitwise.left_shift(bits, tf.ones_like(bits)), 0)
