"""What an optimizer sees in the place of a variable while a step is traced."""

import operator
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec._typing import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class VariableView:
    """One replica's component of a variable, whose writes can be masked.

    A masked write stores the old value where the step is skipped:

    ```text
    assign(new)    ->  assign(where(skips, old, new))
    assign_add(x)  ->  assign(where(skips, old, old + x))
    assign_sub(x)  ->  assign(where(skips, old, old - x))
    ```

    So there is no branch, which XLA would turn into a copy of every slot. It
    reads and writes like a `tf.Variable` but has nothing else: what goes around
    these methods, such as an operation on the `handle`, raises AttributeError.

    Args:
        variable: A `tf.Variable` on one device.
        key: What the optimizer knows the variable by.
        skips: Scalar bool tensor, or `None` for writes that are not masked.
    """

    def __init__(self, variable: Any, key: Any, skips: Tensor | None):
        self._variable = variable
        self._unique_id = key
        self._skips = skips
        self.dtype = variable.dtype
        self.shape = variable.shape
        self.name = variable.name
        self.device = variable.device
        self.trainable = variable.trainable
        self.constraint = getattr(variable, "constraint", None)
        self.write_count = 0

    def __tf_tensor__(
        self, dtype: Any = None, name: str | None = None
    ) -> Tensor:
        return tf.convert_to_tensor(self.read_value(), dtype=dtype, name=name)

    def read_value(self) -> Tensor:
        """Returns the present value."""
        return self._variable.read_value()

    def value(self) -> Tensor:
        """Returns the present value."""
        return self.read_value()

    def assign(self, value: Any) -> "VariableView":
        """Replaces the value."""
        value = tf.cast(value, self.dtype)
        if self._skips is not None:
            value = tf.where(self._skips, self.read_value(), value)
        return self._written(self._variable.assign, value)

    def assign_add(self, delta: Any) -> "VariableView":
        """Adds to the value."""
        return self.assign(self.read_value() + tf.cast(delta, self.dtype))

    def assign_sub(self, delta: Any) -> "VariableView":
        """Subtracts from the value."""
        return self.assign(self.read_value() - tf.cast(delta, self.dtype))

    def scatter_add(self, slices: Any) -> "VariableView":
        """Adds to some rows."""
        # -0.0, since x + 0.0 is not x where x is -0.0.
        return self._written(
            self._variable.scatter_add, self._masked_slices(slices, -0.0)
        )

    def scatter_sub(self, slices: Any) -> "VariableView":
        """Subtracts from some rows."""
        return self._written(
            self._variable.scatter_sub, self._masked_slices(slices, 0.0)
        )

    def scatter_update(self, slices: Any) -> "VariableView":
        """Replaces some rows."""
        values = tf.cast(slices.values, self.dtype)
        if self._skips is not None:
            old = tf.gather(self.read_value(), slices.indices)
            values = tf.where(self._skips, old, values)
        return self._written(
            self._variable.scatter_update,
            tf.IndexedSlices(values, slices.indices, slices.dense_shape),
        )

    def _masked_slices(self, slices: Any, neutral: float) -> Any:
        values = tf.cast(slices.values, self.dtype)
        if self._skips is not None:
            values = tf.where(self._skips, tf.cast(neutral, self.dtype), values)
        return tf.IndexedSlices(values, slices.indices, slices.dense_shape)

    def _written(
        self, write: Callable[[Any], Any], value: Any
    ) -> "VariableView":
        self.write_count += 1
        write(value)
        return self

    def __getitem__(self, index: Any) -> Tensor:
        return self.read_value()[index]


def _unary(function: Callable) -> Callable:
    return lambda self: function(self.read_value())


def _binary(function: Callable) -> Callable:
    return lambda self, other: function(self.read_value(), other)


def _reflected(function: Callable) -> Callable:
    return lambda self, other: function(other, self.read_value())


for _name in ("neg", "abs", "pos"):
    setattr(VariableView, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _function = getattr(operator, _name)
    setattr(VariableView, f"__{_name}__", _binary(_function))
    setattr(VariableView, f"__r{_name}__", _reflected(_function))
for _name in ("lt", "le", "gt", "ge"):
    setattr(VariableView, f"__{_name}__", _binary(getattr(operator, _name)))
