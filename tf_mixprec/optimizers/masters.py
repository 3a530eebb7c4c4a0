"""What is kept of 16-bit variables beside them, in each storage."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.numerics import rounding
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers import master_views
from tf_mixprec.optimizers.remainder_variable import RemainderVariable


class Step(NamedTuple):
    """What a view of a master must know of the step.

    Args:
        rounds: From float32 values to the 16-bit values of the weight.
        turns: Puts the masters of the step in a row.
        holds: Whether views hold what is written.
    """

    rounds: Callable[[Tensor], Tensor]
    turns: master_views.Turns
    holds: bool


class Float32Master:
    """A float32 variable beside the weight, which is the rounded master.

    Args:
        weight: The 16-bit variable.
        name: The name of the master.
        rounding_name: `"nearest"` or `"stochastic"`.
    """

    def __init__(self, weight: Variable, name: str, rounding_name: str):
        self.weight = weight
        self._dtype = weight.dtype
        self._rounding = rounding_name
        with distribution.colocated(weight):
            self.variable = keras.Variable(
                lambda shape, dtype: ops.cast(weight, dtype),
                shape=weight.shape,
                dtype="float32",
                trainable=False,
                name=name,
            )

    def view(self, key: Any, step: Step) -> master_views.MasterView:
        """Returns what the optimizer sees in a step."""
        return master_views.Float32MasterView(
            keras_internals.held_variable(self.weight),
            key,
            keras_internals.held_variable(self.variable),
            step.rounds,
            self._current,
            holds=step.holds,
        )

    def read(self) -> Tensor:
        """Returns the master, as the weight that the user sees has it."""
        return self._current(
            ops.convert_to_tensor(self.variable),
            ops.convert_to_tensor(self.weight),
        )

    def write(self, value: Tensor) -> None:
        """Replaces master and weight."""
        self.variable.assign(value)
        self.weight.assign(
            rounding.rounded(ops.convert_to_tensor(value), self._dtype)
        )

    def sync(self) -> None:
        """Makes the master what the weight is."""
        self.variable.assign(ops.cast(self.weight, "float32"))

    def load(self, value: Tensor) -> None:
        """Replaces the master."""
        self.variable.assign(value)

    def _current(self, master: Tensor, weight: Tensor) -> Tensor:
        """Returns the master, or the weight where it is not that, rounded."""
        return ops.where(
            self._follows(master, weight), master, ops.cast(weight, "float32")
        )

    def _follows(self, master: Tensor, weight: Tensor) -> Tensor:
        """Returns where the weight is the rounded master."""
        if self._rounding == "nearest":
            rounded = rounding.rounded(master, self._dtype)
            return rounding.same_bits(rounded, weight)
        below, above = (
            rounding.stochastically_rounded(master, bits)
            for bits in (0, 2**16 - 1)
        )
        return ops.logical_or(
            rounding.same_bits(below, weight),
            rounding.same_bits(above, weight),
        )


class RemainderMaster:
    """An int16 variable with the bits that a bfloat16 weight lacks.

    Args:
        weight: The bfloat16 variable.
        name: The name of the remainder.
    """

    def __init__(self, weight: Variable, name: str):
        self.weight = weight
        with distribution.colocated(weight):
            self.variable = RemainderVariable(weight, name)

    def view(self, key: Any, step: Step) -> master_views.MasterView:
        """Returns what the optimizer sees in a step."""
        return master_views.RemainderView(
            keras_internals.held_variable(self.weight),
            key,
            keras_internals.held_variable(self.variable),
            step.turns,
            holds=step.holds,
        )

    def read(self) -> Tensor:
        """Returns the master."""
        return rounding.combined(
            ops.convert_to_tensor(self.weight),
            ops.convert_to_tensor(self.variable),
        )

    def write(self, value: Tensor) -> None:
        """Replaces master and weight."""
        value = ops.convert_to_tensor(value)
        self.weight.assign(rounding.rounded(value, "bfloat16"))
        self.load(value)

    def sync(self) -> None:
        """Makes the master what the weight is."""
        self.variable.assign(ops.zeros(self.weight.shape, "int16"))

    def load(self, value: Tensor) -> None:
        """Replaces the master, of which the weight is the other half."""
        self.variable.assign(rounding.remainder(value))


class NoMaster:
    """A bfloat16 weight by itself, updated in float32.

    Args:
        weight: The bfloat16 variable.
    """

    variable = None

    def __init__(self, weight: Variable):
        self.weight = weight

    def view(self, key: Any, step: Step) -> master_views.MasterView:
        """Returns what the optimizer sees in a step."""
        return master_views.StochasticView(
            keras_internals.held_variable(self.weight),
            key,
            step.rounds,
            holds=step.holds,
        )

    def read(self) -> Tensor:
        """Returns the weight in float32."""
        return ops.cast(self.weight, "float32")

    def write(self, value: Tensor) -> None:
        """Replaces the weight."""
        self.weight.assign(
            rounding.rounded(ops.convert_to_tensor(value), "bfloat16")
        )

    def sync(self) -> None:
        """Does nothing."""

    def load(self, value: Tensor) -> None:
        """Does nothing: the weight is loaded with the model."""


Master = Float32Master | RemainderMaster | NoMaster


def make(weight: Variable, storage: str | None, rounding_name: str) -> Master:
    """Returns what is kept beside a 16-bit variable."""
    name = f"{weight.path.replace('/', '_')}_master"
    if storage is None:
        return NoMaster(weight)
    if storage == "remainder":
        return RemainderMaster(weight, name)
    return Float32Master(weight, name, rounding_name)
