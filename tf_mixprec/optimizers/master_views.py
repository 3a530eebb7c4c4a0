"""What an optimizer sees in the place of a 16-bit variable: float32."""

from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics import rounding
from tf_mixprec.optimizers import tracing
from tf_mixprec.optimizers.variable_view import VariableView

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class MasterView(VariableView):
    """A 16-bit variable as a float32 variable.

    What an optimizer writes is held until `publish`, so that a step with weight
    decay, an update and a constraint rounds once. Optimizers whose update is in
    a branch of the graph write at once, since a branch may not be taken.

    Args:
        weight: The 16-bit variable: a `tf.Variable`, or a view of one.
        key: What the optimizer knows it by.
        holds: Whether to hold what is written.
    """

    def __init__(self, weight: Any, key: Any, *, holds: bool):
        super().__init__(weight, key, None)
        self.dtype = tf.float32
        self._holds = holds
        self._held: Tensor | None = None
        self._graph = tracing.current_graph()

    def read_value(self) -> Tensor:
        """Returns the master."""
        return self._stored() if self._held is None else self._held

    def assign(self, value: Any) -> VariableView:
        """Replaces the master."""
        value = tf.cast(value, tf.float32)
        if not self._holds:
            self._store(value)
            return self
        if tracing.current_graph() is not self._graph:
            raise RuntimeError(
                "An optimizer must not write to 16-bit variables in a branch "
                "or a loop of its own, because masters are written when the "
                "step is done; use `keras.ops.where`, or keep the variables "
                f"in float32. Received: a write to {self.name} there"
            )
        self._held = value
        return self

    def publish(self) -> None:
        """Writes what is held."""
        if self._held is not None:
            self._store(self._held)
            self._held = None

    def scatter_add(self, slices: Any) -> VariableView:
        """Adds to some rows."""
        return self._scatter(slices, tf.tensor_scatter_nd_add)

    def scatter_sub(self, slices: Any) -> VariableView:
        """Subtracts from some rows."""
        return self._scatter(slices, tf.tensor_scatter_nd_sub)

    def scatter_update(self, slices: Any) -> VariableView:
        """Replaces some rows."""
        return self._scatter(slices, tf.tensor_scatter_nd_update)

    def _scatter(
        self, slices: Any, change: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> VariableView:
        """Changes the rows of the slices, and converts no other.

        As many rows as slices, since XLA wants a static shape: where slices
        share a row, what is left over writes the first row once more.
        """
        self.publish()
        count = tf.shape(slices.indices)[0]
        _, row_of_slice = tf.unique(slices.indices)
        places = tf.range(count)
        first_slice = tf.math.unsorted_segment_min(places, row_of_slice, count)
        is_left_over = first_slice >= count
        rows = tf.gather(slices.indices, tf.where(is_left_over, 0, first_slice))
        values = change(
            self._read_rows(rows),
            row_of_slice[:, None],
            tf.cast(slices.values, tf.float32),
        )
        # A 0 does not count as one that saturates.
        column = tf.reshape(is_left_over, [-1] + [1] * (values.shape.rank - 1))
        values = tf.where(column, 0.0, values)
        self._write_rows(rows, values, tf.where(is_left_over, 0, places))
        return self

    def _stored(self) -> Tensor:
        """Returns the master that the variables hold."""
        raise NotImplementedError

    def _store(self, value: Tensor) -> None:
        """Writes a master to the variables."""
        raise NotImplementedError

    def _read_rows(self, rows: Tensor) -> Tensor:
        """Returns the masters of some rows."""
        raise NotImplementedError

    def _write_rows(self, rows: Tensor, values: Tensor, source: Tensor) -> None:
        """Writes some rows.

        Args:
            rows: Which rows, with repetitions.
            values: Their masters, and zeros for repetitions.
            source: Which of the values to write to each row.
        """
        raise NotImplementedError


class Float32MasterView(MasterView):
    """A master in a float32 variable of its own.

    Args:
        weight: The 16-bit variable.
        key: What the optimizer knows it by.
        master: The float32 variable.
        rounds: From float32 values to the 16-bit values of the weight.
        current: From master and weight to the master: the weight where it is
            not the rounded master any more.
        holds: Whether to hold what is written.
    """

    def __init__(
        self,
        weight: Any,
        key: Any,
        master: Any,
        rounds: Callable[[Tensor], Tensor],
        current: Callable[[Tensor, Tensor], Tensor],
        *,
        holds: bool,
    ):
        super().__init__(weight, key, holds=holds)
        self._master = master
        self._rounds = rounds
        self._current = current

    def _stored(self) -> Tensor:
        return self._current(
            self._master.read_value(), self._variable.read_value()
        )

    def _store(self, value: Tensor) -> None:
        self._master.assign(value)
        # Of what was written: XLA would compute the value a second time, from
        # a copy of the old master.
        self._variable.assign(self._rounds(self._master.read_value()))

    def _read_rows(self, rows: Tensor) -> Tensor:
        return self._current(
            tf.gather(self._master.read_value(), rows),
            tf.gather(self._variable.read_value(), rows),
        )

    def _write_rows(self, rows: Tensor, values: Tensor, source: Tensor) -> None:
        _update_rows(self._master, values, rows, source)
        _update_rows(self._variable, self._rounds(values), rows, source)


class Turns:
    """A 1 that a compiler does not know, and that comes after a write.

    The float32 masters of split weights are there for a moment only. Each waits
    for the one before, or XLA would make them all at once.

    Args:
        iterations: Scalar int variable, in steps.
    """

    def __init__(self, iterations: Any):
        # No compiler knows that steps are not counted from below 0.
        self._is_true = tf.convert_to_tensor(iterations) >= 0
        self.one = tf.cast(self._is_true, tf.float32)

    def pass_on(self, written: list[VariableView]) -> None:
        """Lets the next one wait for variables that are not empty."""
        if 0 not in written[0].shape:
            elements = [
                tf.cast(tf.reshape(v.read_value(), [-1])[0], tf.float32)
                for v in written
            ]
            self.one = tf.where(self._is_true, 1.0, sum(elements))


class RemainderView(MasterView):
    """A master that is the bfloat16 variable and the 16 bits it lacks.

    Args:
        weight: The bfloat16 variable.
        key: What the optimizer knows it by.
        remainder: The int16 variable.
        turns: Puts the masters of a step in a row, where they are held.
        holds: Whether to hold what is written.
    """

    def __init__(
        self,
        weight: Any,
        key: Any,
        remainder: Any,
        turns: Turns,
        *,
        holds: bool,
    ):
        super().__init__(weight, key, holds=holds)
        self._remainder = remainder
        self._turns = turns

    def _stored(self) -> Tensor:
        return rounding.combined(
            self._variable.read_value(), self._remainder.read_value()
        )

    def _store(self, value: Tensor) -> None:
        # XLA computes a quotient once and keeps it. What is cheap it computes
        # for each half, from copies of the old ones.
        value = value / self._turns.one
        self._variable.assign(rounding.rounded(value, "bfloat16"))
        self._remainder.assign(rounding.remainder(value))
        if self._holds:
            self._turns.pass_on([self._variable, self._remainder])

    def _read_rows(self, rows: Tensor) -> Tensor:
        return rounding.combined(
            tf.gather(self._variable.read_value(), rows),
            tf.gather(self._remainder.read_value(), rows),
        )

    def _write_rows(self, rows: Tensor, values: Tensor, source: Tensor) -> None:
        upper = rounding.rounded(values, "bfloat16")
        _update_rows(self._variable, upper, rows, source)
        lower = rounding.remainder(values)
        _update_rows(self._remainder, lower, rows, source)


class StochasticView(MasterView):
    """A bfloat16 variable without a master, whose writes round by chance.

    Args:
        weight: The bfloat16 variable.
        key: What the optimizer knows it by.
        rounds: From float32 values to bfloat16 values.
        holds: Whether to hold what is written.
    """

    def __init__(
        self,
        weight: Any,
        key: Any,
        rounds: Callable[[Tensor], Tensor],
        *,
        holds: bool,
    ):
        super().__init__(weight, key, holds=holds)
        self._rounds = rounds

    def _stored(self) -> Tensor:
        return tf.cast(self._variable.read_value(), tf.float32)

    def _store(self, value: Tensor) -> None:
        self._variable.assign(self._rounds(value))

    def _read_rows(self, rows: Tensor) -> Tensor:
        weight = tf.gather(self._variable.read_value(), rows)
        return tf.cast(weight, tf.float32)

    def _write_rows(self, rows: Tensor, values: Tensor, source: Tensor) -> None:
        _update_rows(self._variable, self._rounds(values), rows, source)


def _update_rows(
    variable: Any, values: Tensor, rows: Tensor, source: Tensor
) -> None:
    """Writes `values[source]` to the rows of a variable."""
    variable.scatter_update(tf.IndexedSlices(tf.gather(values, source), rows))
