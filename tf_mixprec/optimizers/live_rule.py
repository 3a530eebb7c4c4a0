"""A rule whose numbers can change while training, without retracing."""

import dataclasses
import types
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import DynamicLossScale
from tf_mixprec.loss_scale.checks import check_scale

# The type of each number. Not `initial_scale`, which has done its work, and not
# `hysteresis_refill`, which chooses the operations and so is part of the trace.
LIVE_FIELDS = {
    field.name: field.type
    for field in dataclasses.fields(DynamicLossScale)
    if field.name not in ("initial_scale", "hysteresis_refill")
}


class LiveRule:
    """A `DynamicLossScale` whose numbers are also kept on the device.

    The numbers belong to the configuration and not to the state: they are no
    part of the optimizer's variables, so a checkpoint does not bring back an
    interval that the program has changed.

    Args:
        rule: The numbers to start from.
    """

    def __init__(self, rule: DynamicLossScale):
        self.rule = rule
        self._variables = {
            name: keras.Variable(
                getattr(rule, name),
                dtype="int" if number_type is int else "float32",
                trainable=False,
                aggregation="only_first_replica",
                name=name,
            )
            for name, number_type in LIVE_FIELDS.items()
        }

    @property
    def variables(self) -> list[Variable]:
        """The numbers on the device."""
        return list(self._variables.values())

    def read(self) -> Any:
        """Returns a rule for `next_state`, with scalar tensors as numbers."""
        return types.SimpleNamespace(
            hysteresis_refill=self.rule.hysteresis_refill,
            **{
                name: ops.convert_to_tensor(variable)
                for name, variable in self._variables.items()
            },
        )

    def change(self, name: str, value: Any) -> None:
        """Sets one number for the steps to come.

        The initial scale has done its work and follows a bound that passes it.

        Args:
            name: One of `LIVE_FIELDS`.
            value: The new number.

        Raises:
            TypeError: If `value` is not a number.
            ValueError: If the rule would not accept it in its constructor.
        """
        if name in ("min_scale", "max_scale"):
            check_scale(name, value)
        changes = {name: value}
        if name == "min_scale" and value <= self.rule.max_scale:
            changes["initial_scale"] = max(value, self.rule.initial_scale)
        if name == "max_scale" and value >= self.rule.min_scale:
            changes["initial_scale"] = min(value, self.rule.initial_scale)
        # Checked as a whole before anything changes.
        self.rule = dataclasses.replace(self.rule, **changes)
        self._variables[name].assign(value)


class Knob:
    """A field of an optimizer's rule, as an attribute of the optimizer.

    Args:
        field: The field's name, where the attribute has another.
    """

    def __init__(self, field: str = ""):
        self._field = field

    def __set_name__(self, owner: type, name: str) -> None:
        self._field = self._field or name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        # `None` for what a fixed loss scale does not have, as in tf.keras.
        return getattr(optimizer.rule, self._field, None)

    def __set__(self, optimizer: Any, value: float) -> None:
        optimizer.change_rule(self._field, value)
