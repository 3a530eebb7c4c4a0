"""Rules: how a loss scale moves. Frozen, checked once, serializable."""

import dataclasses
from typing import Any
from typing import TypeAlias
from typing import cast

import keras

from tf_mixprec.loss_scale.checks import check_count
from tf_mixprec.loss_scale.checks import check_number
from tf_mixprec.loss_scale.checks import check_scale
from tf_mixprec.loss_scale.state import LossScaleState

HYSTERESIS_REFILLS = ("growth", "good_step", "backoff")


@keras.saving.register_keras_serializable(package="tf_mixprec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticLossScale:
    """A loss scale that never moves. Its argument is keyword-only.

    Args:
        initial_scale: Float, dimensionless, from 2**-126 to below 2**128: the
            loss scale. Defaults to `2.0**15`.

    Raises:
        TypeError: If `initial_scale` is not a number.
        ValueError: If `initial_scale` is out of range.

    Example:

    >>> StaticLossScale(initial_scale=1024.0).initial_state().loss_scale
    1024.0
    """

    initial_scale: float = 2.0**15

    def __post_init__(self) -> None:
        """Rejects a scale that float32 does not hold."""
        check_scale("initial_scale", self.initial_scale)
        _make_plain(self)

    def initial_state(self) -> LossScaleState:
        """Returns the state before the first step, in Python numbers."""
        return LossScaleState(loss_scale=float(self.initial_scale))

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, in JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "StaticLossScale":
        """Returns the rule that `get_config` described."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tf_mixprec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicLossScale:
    """A loss scale that grows while gradients are finite and backs off if not.

    All arguments are keyword-only.

    ```text
    good step:      good_steps += 1
                    if good_steps >= growth_interval: scale *= growth_factor
    inf or nan:     the step is skipped and good_steps = 0
                    if `hysteresis` and `tolerance` are used up:
                        scale *= backoff_factor
    always:         min_scale <= scale <= max_scale
    ```

    Args:
        initial_scale: Float, dimensionless, between `min_scale` and
            `max_scale`: the first loss scale. Defaults to `2.0**15`.
        growth_factor: Float, above 1. Defaults to 2.
        backoff_factor: Float, strictly between 0 and 1. Defaults to 0.5.
        growth_interval: Int, in steps, at least 1: good steps in a row until
            the scale grows. Defaults to 2000.
        growth_delay: Int, in steps, at least 0: good steps that do not count
            at the start and after each overflow (DeepSpeed has 1). Defaults
            to 0.
        min_scale: Float, from 2**-126 to `initial_scale`: the floor. Defaults
            to 1.
        max_scale: Float, from `initial_scale` to below 2**128: the ceiling.
            Defaults to `2.0**24`.
        hysteresis: Int, in steps, at least 1: the overflow that first backs
            off; 1 backs off at every overflow. Defaults to 1.
        hysteresis_refill: String, what gives the full `hysteresis` back:
            `"growth"` of the scale (Megatron, DeepSpeed), any `"good_step"`
            (apex, DeepSpeed with `consecutive_hysteresis`), or `"backoff"`,
            which is any good step and also each backoff (Paddle). Defaults to
            `"growth"`.
        tolerance: Float, a fraction from 0 to 1: an overflow only backs off
            if overflows are at least this share of the steps since the scale
            last moved (fairseq). Defaults to 0, which backs off at each.

    Raises:
        TypeError: If an argument that must be a number is not one.
        ValueError: If an argument is out of its range.

    Example:

    >>> rule = DynamicLossScale(initial_scale=8.0, growth_interval=100)
    >>> state = next_state(rule.initial_state(), True, rule)
    >>> float(state.loss_scale)
    4.0

    Reference:
        - [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)
    """

    initial_scale: float = 2.0**15
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    growth_delay: int = 0
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    hysteresis: int = 1
    hysteresis_refill: str = "growth"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        """Rejects constants that would make the scale drift or stick."""
        self._check_factors()
        check_count("growth_interval", self.growth_interval, 1)
        check_count("growth_delay", self.growth_delay, 0)
        self._check_bounds()
        self._check_hysteresis()
        _make_plain(self)

    def _check_factors(self) -> None:
        check_number("growth_factor", self.growth_factor)
        if not self.growth_factor > 1.0:
            raise ValueError(
                "`growth_factor` must be above 1, because it multiplies the "
                "loss scale after `growth_interval` good steps; for a scale "
                "that never moves use `dynamic=False` (`StaticLossScale`). "
                f"Received: growth_factor={self.growth_factor!r}"
            )
        check_number("backoff_factor", self.backoff_factor)
        if not 0.0 < self.backoff_factor < 1.0:
            raise ValueError(
                "`backoff_factor` must lie strictly between 0 and 1, because "
                "it multiplies the loss scale after an overflow; 0.5 halves "
                f"it. Received: backoff_factor={self.backoff_factor!r}"
            )

    def _check_bounds(self) -> None:
        for name in ("min_scale", "initial_scale", "max_scale"):
            check_scale(name, getattr(self, name))
        if self.min_scale > self.max_scale:
            raise ValueError(
                "`min_scale` must not be above `max_scale`, because the loss "
                "scale lies between them; swap or widen them. Received: "
                f"min_scale={self.min_scale!r}, max_scale={self.max_scale!r}"
            )
        if not self.min_scale <= self.initial_scale <= self.max_scale:
            raise ValueError(
                "`initial_scale` must lie between `min_scale` and "
                "`max_scale`, because the loss scale never leaves these "
                "bounds; move the bound or the start. Received: "
                f"min_scale={self.min_scale!r}, "
                f"initial_scale={self.initial_scale!r}, "
                f"max_scale={self.max_scale!r}"
            )

    def _check_hysteresis(self) -> None:
        check_count("hysteresis", self.hysteresis, 1)
        if self.hysteresis_refill not in HYSTERESIS_REFILLS:
            raise ValueError(
                "`hysteresis_refill` must be one of 'growth', 'good_step' or "
                "'backoff', because it names the event that refills the "
                "hysteresis. Received: "
                f"hysteresis_refill={self.hysteresis_refill!r}"
            )
        check_number("tolerance", self.tolerance)
        if not 0.0 <= self.tolerance <= 1.0:
            raise ValueError(
                "`tolerance` must lie between 0 and 1, because it is a share "
                f"of the steps. Received: tolerance={self.tolerance!r}"
            )

    def initial_state(self) -> LossScaleState:
        """Returns the state before the first step, in Python numbers."""
        return LossScaleState(
            loss_scale=float(self.initial_scale),
            hysteresis_left=int(self.hysteresis),
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, in JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DynamicLossScale":
        """Returns the rule that `get_config` described."""
        return cls(**config)


def _make_plain(rule: Any) -> None:
    """Makes NumPy numbers Python numbers, which JSON can hold."""
    for field in dataclasses.fields(rule):
        plain = cast(type, field.type)(getattr(rule, field.name))
        object.__setattr__(rule, field.name, plain)


LossScaleRule: TypeAlias = DynamicLossScale | StaticLossScale
