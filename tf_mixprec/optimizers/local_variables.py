"""The components that one replica has of the variables of a step."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers.variable_view import VariableView

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class LocalVariables:
    """Finds the components of all variables that a step may touch.

    Args:
        optimizer: The optimizer that makes the update.
        variables: The variables it updates.
        state: Variables of the loss scale.
        component_of: From a `tf.Variable` to its component on this replica.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[Variable],
        state: Sequence[Variable],
        component_of: Callable[[Any], Any],
    ):
        self._optimizer = optimizer
        self._state = list(state)
        # A moving average also reads variables that have no gradient.
        self._updated = _distinct(
            [
                *variables,
                *keras_internals.trainable_variables(optimizer),
                *optimizer.variables,
            ]
        )
        # Asked for here, where the strategy and the replica are known.
        self._components = {
            id(variable): (
                component_of(keras_internals.held_variable(variable)),
                keras_internals.key_of(optimizer, variable),
            )
            for variable in [*self._updated, *self._state]
        }

    @property
    def device(self) -> str:
        """The device that they are on."""
        component, _ = self._components[id(self._state[0])]
        return component.device

    @contextlib.contextmanager
    def seen(self, skips: Tensor | None) -> Iterator[dict[int, VariableView]]:
        """Lets Keras variables hold views of the components.

        Args:
            skips: Scalar bool tensor that masks the writes to all variables
                but the state; `None` if they are not masked.

        Yields:
            The views by `id` of the variable.
        """
        views = {
            id(variable): VariableView(*self._components[id(variable)], mask)
            for variables, mask in ((self._state, None), (self._updated, skips))
            for variable in variables
        }
        with (
            keras_internals.holding(views, [*self._updated, *self._state]),
            keras_internals.knowing(views, self._optimizer),
            keras_internals.without_distribution(
                self._optimizer, tf.distribute.get_strategy()
            ),
        ):
            yield views


def _distinct(variables: Sequence[Variable]) -> list[Variable]:
    return list({id(variable): variable for variable in variables}.values())
