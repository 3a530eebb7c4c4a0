"""The loss-scale state and its rule, as variables of an optimizer."""

import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import DynamicLossScale
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.loss_scale.checks import LARGEST_WITH_RECIPROCAL
from tf_mixprec.loss_scale.checks import check_number
from tf_mixprec.loss_scale.checks import check_scale
from tf_mixprec.optimizers.delegation import TransparentWrapper
from tf_mixprec.optimizers.live_rule import LIVE_FIELDS
from tf_mixprec.optimizers.live_rule import Knob
from tf_mixprec.optimizers.live_rule import LiveRule

_DTYPES = {"loss_scale": "float32", "found_inf": "bool"}  # the others: int


class LossScaleVariables(
    TransparentWrapper, keras.optimizers.LossScaleOptimizer
):
    """A wrapper with one attribute for each field of `LossScaleState`.

    The variables are made with the optimizer and not when it is built, so that
    a checkpoint can be restored before the first step.

    Args:
        inner_optimizer: The optimizer that makes the update.
        rule: How the loss scale starts and moves.
        name: String, or `None` for a unique name.
    """

    growth_factor = Knob()
    backoff_factor = Knob()
    growth_interval = Knob()
    dynamic_growth_steps = Knob("growth_interval")
    growth_delay = Knob()
    min_scale = Knob()
    max_scale = Knob()
    hysteresis = Knob()
    hysteresis_refill = Knob()
    tolerance = Knob()
    initial_scale = Knob()

    _rule: LiveRule | StaticLossScale

    def __init__(
        self, inner_optimizer: Any, rule: LossScaleRule, name: str | None
    ):
        super().__init__(inner_optimizer, name)
        # What the trace of a step takes for granted.
        lowest, highest = _range(rule)
        self._scale_stays_above_one = lowest >= 1.0
        self._has_reciprocal = highest <= LARGEST_WITH_RECIPROCAL
        self._rule = (
            LiveRule(rule) if isinstance(rule, DynamicLossScale) else rule
        )
        for field, initializer, dtype in initial_variables(rule):
            variable = self.add_variable(
                shape=(),
                initializer=initializer,
                dtype=dtype,
                aggregation="only_first_replica",
                name=field,
            )
            setattr(self, field, variable)

    def _state(self) -> LossScaleState:
        """Returns the variables of the state."""
        return LossScaleState(
            *(getattr(self, name) for name in LossScaleState._fields)
        )

    def _assign_state(self, state: LossScaleState) -> None:
        """Writes every field to its variable."""
        for variable, value in zip(self._state(), state, strict=True):
            variable.assign(value)

    @property
    def rule(self) -> LossScaleRule:
        """How the loss scale moves, in Python numbers."""
        rule = self._rule
        return rule.rule if isinstance(rule, LiveRule) else rule

    def _rule_in_force(self) -> Any:
        """Returns the rule for `next_state`, with numbers that can change."""
        rule = self._rule
        return rule.read() if isinstance(rule, LiveRule) else rule

    def _rule_variables(self) -> list[Variable]:
        """Returns the variables that hold the rule's numbers."""
        rule = self._rule
        return rule.variables if isinstance(rule, LiveRule) else []

    @property
    def dynamic(self) -> bool:
        """Whether the loss scale moves."""
        return isinstance(self._rule, LiveRule)

    @property
    def dynamic_scale(self) -> Variable:
        """Keras's name for `loss_scale`."""
        return self.loss_scale

    @property
    def step_counter(self) -> Variable:
        """Keras's name for `good_steps`."""
        return self.good_steps

    @property
    def variables(self) -> list[Variable]:
        """The state of the loss scale, then the inner optimizer's variables."""
        return [*self._state(), *self.inner_optimizer.variables]

    def change_rule(self, name: str, value: float) -> None:
        """Sets a number of the rule; `optimizer.growth_interval = 100` does.

        Args:
            name: The field of `mp.DynamicLossScale`.
            value: The new number.

        Raises:
            AttributeError: If the number cannot change any more.
            TypeError: If `value` is not a number.
            ValueError: If the rule would not accept it in its constructor.
        """
        rule = self._rule
        if not isinstance(rule, LiveRule) or name not in LIVE_FIELDS:
            raise AttributeError(
                f"`{name}` must be given to the constructor, because a run "
                "starts with it or is traced with it. Set `loss_scale` for "
                "the current scale; of a dynamic scale these can be set: "
                f"{', '.join(LIVE_FIELDS)}. Received: {name}={value!r}"
            )
        self._check_traced_range(name, value)
        rule.change(name, value)
        if name in ("min_scale", "max_scale"):
            self.loss_scale.assign(
                ops.clip(self.loss_scale, self.min_scale, self.max_scale)
            )

    def _check_traced_range(self, name: str, value: Any) -> None:
        """Raises for a scale that the traced steps are not made for."""
        if name not in ("loss_scale", "min_scale", "max_scale"):
            return
        check_scale(name, value)
        below = self._scale_stays_above_one and value < 1.0
        above = self._has_reciprocal and value > LARGEST_WITH_RECIPROCAL
        if below or above:
            raise ValueError(
                f"`{name}` must not pass {'1' if below else '2**126'} after "
                "the optimizer is made, because steps for such a scale are "
                "traced differently; give the bound to the constructor. "
                f"Received: {name}={value!r}"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in LossScaleState._fields and name in vars(self):
            self._set_state_variable(name, value)
        else:
            super().__setattr__(name, value)

    def _set_state_variable(self, name: str, value: Any) -> None:
        if ops.is_tensor(value) or isinstance(value, keras.Variable):
            value = ops.convert_to_numpy(value)[()]  # `loss_scale *= 2`
        if name == "loss_scale":
            check_scale(name, value)
            if self.dynamic and not self.min_scale <= value <= self.max_scale:
                raise ValueError(
                    "`loss_scale` must lie between `min_scale` and "
                    "`max_scale`, because the next step would move it there; "
                    f"move the bound first. Received: loss_scale={value!r}, "
                    f"min_scale={self.min_scale!r}, "
                    f"max_scale={self.max_scale!r}"
                )
            self._check_traced_range(name, value)
        elif name != "found_inf":
            check_number(name, value)
        getattr(self, name).assign(value)

    def save_own_variables(self, store: Any) -> None:
        """Saves the state only: Keras saves `inner_optimizer` by itself."""
        for name, variable in self._state()._asdict().items():
            store[name] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads the state; a field that the file lacks keeps its value."""
        missing = set(LossScaleState._fields) - set(store.keys())
        if missing:
            warnings.warn(
                f"The file has no loss-scale state for '{self.name}', because "
                "it was saved without an optimizer, or with another class or "
                "version of one, so the loss scale stays as it is. To go on "
                "with the scale of Keras's own LossScaleOptimizer, load with "
                "that and convert it: "
                "`mp.wrap(model.optimizer)`. Missing: "
                f"{', '.join(sorted(missing))}",
                stacklevel=2,
            )
        for name, variable in self._state()._asdict().items():
            if name not in missing:
                variable.assign(store[name])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables, the inner optimizer's included.

        Args:
            weights: Arrays, as many and of the shapes as `self.variables`.

        Raises:
            ValueError: If their number or a shape does not match.
        """
        variables = self.variables
        if len(weights) != len(variables):
            raise ValueError(
                "`weights` must have one array for each of "
                "`optimizer.variables`, because all of them are set; build "
                "the optimizer first. Received: "
                f"{len(weights)} arrays for {len(variables)} variables"
            )
        for variable, weight in zip(variables, weights, strict=True):
            if tuple(variable.shape) != tuple(weight.shape):
                raise ValueError(
                    f"The array for '{variable.path}' must have the shape "
                    f"{tuple(variable.shape)}, because it replaces its value. "
                    f"Received: shape={tuple(weight.shape)}"
                )
            variable.assign(weight)


def initial_variables(
    rule: LossScaleRule,
) -> Iterator[tuple[str, Callable[..., Tensor], str]]:
    """Yields name, initializer and dtype of each variable of the state."""
    for field, value in rule.initial_state()._asdict().items():
        yield field, _constant(value), _DTYPES.get(field, "int")


def _range(rule: LossScaleRule) -> tuple[float, float]:
    """Returns the least and the greatest loss scale under a rule."""
    start = rule.initial_scale
    return getattr(rule, "min_scale", start), getattr(rule, "max_scale", start)


def _constant(value: bool | float) -> Callable[..., Tensor]:
    """Returns an initializer; Keras's `Constant` does not know bool."""
    return lambda shape, dtype: ops.full(shape, value, dtype)
