"""A loss scale that several optimizers, or the losses of a step, move by."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_mixprec import numerics
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.loss_scale import next_state
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tf_mixprec.optimizers.state_variables import initial_variables
from tf_mixprec.optimizers.tracing import as_written
from tf_mixprec.optimizers.tracing import traced
from tf_mixprec.optimizers.verdict import Verdict
from tf_mixprec.optimizers.wrap import wrap


class SharedLossScale:
    """One loss scale for several optimizers, as torch's `GradScaler` has.

    Each optimizer skips steps by itself. The scale moves once a round, in
    `update`: it backs off if any of their steps since the last one had inf or
    nan, and counts a good step else. Nobody else calls `update`: the loop does,
    after each optimizer has made its step.

    Args:
        preset: As in `mp.wrap`.
        **options: The numbers of the scale, as in `mp.LossScaleOptimizer`.

    Attributes:
        loss_scale: Scalar float32 variable.
        rule: The `mp.DynamicLossScale` or `mp.StaticLossScale`.

    Raises:
        TypeError: If a number has the wrong type.
        ValueError: If a number is out of its range.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> shared = mp.SharedLossScale(initial_scale=8.0, growth_interval=1)
    >>> first, second = shared.wrap("sgd"), shared.wrap("sgd")
    >>> weight, other = keras.Variable(1.0), keras.Variable(1.0)
    >>> scaled_loss = first.scale_loss(0.0)
    >>> first.apply([float("inf")], [weight])
    >>> scaled_loss = second.scale_loss(0.0)
    >>> second.apply([8.0], [other])
    >>> shared.update()
    >>> float(shared.loss_scale), float(weight), round(float(other), 4)
    (4.0, 1.0, 0.99)
    """

    def __init__(
        self, preset: str | LossScaleRule | None = None, **options: Any
    ):
        # `wrap` knows all the ways to name a rule.
        self.rule = wrap("sgd", preset, **options).rule
        self._state = LossScaleState(
            **{
                name: keras.Variable(
                    initializer,
                    shape=(),
                    dtype=dtype,
                    trainable=False,
                    aggregation="only_first_replica",
                    name=name,
                )
                for name, initializer, dtype in initial_variables(self.rule)
            }
        )
        self._stepped = _flag("stepped")
        self._found_inf = _flag("found_inf_in_round")
        self._optimizers: list[LossScaleOptimizer] = []
        self._traced_update: Callable[[], None] | None = None
        self._followed: list[bool] = []  # in that trace

    @property
    def loss_scale(self) -> Variable:
        """Scalar float32 variable, dimensionless."""
        return self._state.loss_scale

    @property
    def state(self) -> LossScaleState:
        """The variables of the state, of which a step is a round."""
        return self._state

    @property
    def variables(self) -> list[Variable]:
        """All variables, for checkpoints."""
        return [*self._state, *self.round_variables]

    @property
    def round_variables(self) -> list[Variable]:
        """What a step of an optimizer writes to."""
        return [self._stepped, self._found_inf]

    def wrap(self, optimizer: Any, **options: Any) -> LossScaleOptimizer:
        """Returns the optimizer, wrapped to use this scale.

        Args:
            optimizer: An optimizer, a name or a config that is not wrapped.
            **options: As in `mp.wrap`, without the numbers of the scale.

        Raises:
            ValueError: If the optimizer is wrapped already, or a number of the
                scale is given.
        """
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "`optimizer` must not be wrapped already, because it would "
                "have a loss scale of its own; give its `inner_optimizer`. "
                f"Received: optimizer={optimizer!r}"
            )
        numbers = {*self.rule.get_config(), "dynamic"} & set(options)
        if numbers:
            raise ValueError(
                "The numbers of the scale must be given to "
                "`mp.SharedLossScale`, because all its optimizers share them. "
                f"Received: {', '.join(sorted(numbers))}"
            )
        wrapped = wrap(optimizer, self.rule, **options)
        config = wrapped.get_config()
        del config["inner_optimizer"]
        sharing = SharingOptimizer(
            wrapped.inner_optimizer, **config, shared=self
        )
        sharing.loss_scale.assign(self.loss_scale)
        self._optimizers.append(sharing)
        self._traced_update = None  # it does not know this one
        return sharing

    @as_written
    def scale_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss times the loss scale, in at least float32."""
        return ops.multiply(numerics.widened(loss), self.loss_scale)

    def note(self, found_inf: Tensor) -> None:
        """Notes a step, or gradients, of this round.

        Args:
            found_inf: Scalar bool tensor: whether there was inf or nan. The
                same on every replica.
        """
        found_inf = ops.logical_or(self._found_inf, found_inf)
        distribution.assign(self._found_inf, found_inf)
        distribution.assign(self._stepped, ops.convert_to_tensor(True))

    @as_written
    def update(self) -> None:
        """Ends a round: moves the scale. Without a step nothing moves."""
        followed = [o.notes.moves is not None for o in self._optimizers]
        if self._traced_update is None or self._followed != followed:
            self._traced_update = traced(self._update)
            self._followed = followed
        self._traced_update()

    def _update(self) -> None:
        state = LossScaleState(*(ops.convert_to_tensor(v) for v in self._state))
        before = ops.copy(self.loss_scale)  # read here and not later
        moved = next_state(state, self._found_inf, self.rule)
        stepped = ops.convert_to_tensor(self._stepped)
        for variable, old, new in zip(self._state, state, moved, strict=True):
            distribution.assign(variable, ops.where(stepped, new, old))
        for flag in self.round_variables:
            distribution.assign(flag, ops.convert_to_tensor(False))
        after = ops.convert_to_tensor(self.loss_scale)
        for optimizer in self._optimizers:
            distribution.assign(optimizer.loss_scale, after)
            if optimizer.notes.moves is not None:
                optimizer.notes.moves.note(before, after)


@keras.saving.register_keras_serializable(package="tf_mixprec")
class SharingOptimizer(LossScaleOptimizer):
    """A `LossScaleOptimizer` whose scale a `SharedLossScale` moves.

    A file has no way to say what it shares: what is loaded from a config is a
    `LossScaleOptimizer` with a scale of its own.
    """

    def __init__(self, *args: Any, shared: SharedLossScale, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._shared = shared

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> LossScaleOptimizer:
        """Returns an optimizer with a scale of its own."""
        return LossScaleOptimizer.from_config(config, custom_objects)

    def _rule_variables(self) -> list[Variable]:
        return [*super()._rule_variables(), *self._shared.round_variables]

    def _rule_in_force(self) -> Any:
        return StaticLossScale()  # it counts steps, and moves nothing

    def _move(self, verdict: Verdict) -> None:
        super()._move(verdict)
        self._shared.note(verdict.found_inf)


def _flag(name: str) -> Variable:
    return keras.Variable(
        False,
        dtype="bool",
        trainable=False,
        aggregation="only_first_replica",
        name=name,
    )
