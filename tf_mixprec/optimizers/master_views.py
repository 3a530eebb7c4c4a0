"""What an optimizer sees in the place of a 16-bit variable: float32."""

from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics import rounding
from tf_mixprec.optimizers.variable_view import VariableView

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class MasterView(VariableView):
    """A 16-bit variable as a float32 variable.

    Args:
        weight: The 16-bit variable: a `tf.Variable`, or a view of one.
        key: What the optimizer knows it by.
    """

    def __init__(self, weight: Any, key: Any):
        super().__init__(weight, key, None)
        self.dtype = tf.float32

    def make_current(self) -> None:
        """Replaces a master that the weight no longer comes from."""

    def publish(self) -> None:
        """Writes to the weight what the master has become."""

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
        follows: From master and weight to where the one has become the other.
    """

    def __init__(
        self,
        weight: Any,
        key: Any,
        master: Any,
        rounds: Callable[[Tensor], Tensor],
        follows: Callable[[Tensor, Tensor], Tensor],
    ):
        super().__init__(weight, key)
        self._master = master
        self._rounds = rounds
        self._follows = follows
        self._is_current = False
        self._has_rows_only = True

    def make_current(self) -> None:
        if not self._is_current:
            self._is_current = True
            self._master.assign(
                self._current(
                    self._master.read_value(), self._variable.read_value()
                )
            )

    def _current(self, master: Tensor, weight: Tensor) -> Tensor:
        return tf.where(
            self._follows(master, weight), master, tf.cast(weight, tf.float32)
        )

    def read_value(self) -> Tensor:
        """Returns the master, as the weight that the user sees has it."""
        self.make_current()
        return self._master.read_value()

    def assign(self, value: Any) -> VariableView:
        """Replaces the master; `publish` writes the weight."""
        self._is_current = True
        self._has_rows_only = False
        self._master.assign(tf.cast(value, tf.float32))
        return self

    def publish(self) -> None:
        if not self._has_rows_only:
            self._variable.assign(self._rounds(self._master.read_value()))

    def _read_rows(self, rows: Tensor) -> Tensor:
        master = tf.gather(self._master.read_value(), rows)
        if self._is_current:
            return master
        weight = tf.gather(self._variable.read_value(), rows)
        return self._current(master, weight)

    def _write_rows(self, rows: Tensor, values: Tensor, source: Tensor) -> None:
        _update_rows(self._master, values, rows, source)
        _update_rows(self._variable, self._rounds(values), rows, source)


class RemainderView(MasterView):
    """A master that is the bfloat16 variable and the 16 bits it lacks.

    Args:
        weight: The bfloat16 variable.
        key: What the optimizer knows it by.
        remainder: The int16 variable.
        one: Scalar float32 tensor: a 1 that a compiler does not know.
    """

    def __init__(self, weight: Any, key: Any, remainder: Any, one: Tensor):
        super().__init__(weight, key)
        self._remainder = remainder
        self._one = one

    def read_value(self) -> Tensor:
        """Returns the master."""
        return rounding.combined(
            self._variable.read_value(), self._remainder.read_value()
        )

    def assign(self, value: Any) -> VariableView:
        """Replaces the master and the weight."""
        # XLA computes a quotient once and keeps it. What is cheap it computes
        # for each half, from copies of the old ones.
        value = tf.cast(value, tf.float32) / self._one
        self._variable.assign(rounding.rounded(value, "bfloat16"))
        self._remainder.assign(rounding.remainder(value))
        return self

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
    """

    def __init__(
        self, weight: Any, key: Any, rounds: Callable[[Tensor], Tensor]
    ):
        super().__init__(weight, key)
        self._rounds = rounds

    def read_value(self) -> Tensor:
        """Returns the weight, in float32."""
        return tf.cast(self._variable.read_value(), tf.float32)

    def assign(self, value: Any) -> VariableView:
        """Replaces the weight."""
        self._variable.assign(self._rounds(tf.cast(value, tf.float32)))
        return self

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
