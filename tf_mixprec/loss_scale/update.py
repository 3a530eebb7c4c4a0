"""One step of the loss scale: the only place where the rule is written.

Branch-free (`where` and no `cond`), so eager code, `tf.function`, XLA, replicas
and `stateless_apply` on other backends run the same operations.
"""

from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.loss_scale.rule import DynamicLossScale
from tf_mixprec.loss_scale.rule import LossScaleRule
from tf_mixprec.loss_scale.rule import StaticLossScale
from tf_mixprec.loss_scale.state import LossScaleState


def next_state(
    state: LossScaleState, found_inf: Tensor, rule: LossScaleRule
) -> LossScaleState:
    """Returns the state for the next training step.

    Args:
        state: The loss scale just used, and its counters.
        found_inf: Scalar bool tensor: whether a gradient of this step was inf
            or nan.
        rule: How the scale moves. Its numbers may be tensors, so that they
            can change without retracing.

    Raises:
        TypeError: If `state` is not a `LossScaleState`.

    Example:

    >>> rule = DynamicLossScale(initial_scale=8.0, growth_interval=1)
    >>> float(next_state(rule.initial_state(), False, rule).loss_scale)
    16.0
    """
    if not isinstance(state, LossScaleState):
        raise TypeError(
            "`state` must be a `LossScaleState`, because the counters move "
            "with the scale; `rule.initial_state()` is the first. Received: "
            f"state={state!r}"
        )
    state = LossScaleState(*(ops.convert_to_tensor(field) for field in state))
    found_inf = ops.cast(found_inf, "bool")
    counted = _counted(state, found_inf)
    if isinstance(rule, StaticLossScale):
        return counted
    return _moved(counted, found_inf, rule)


def _counted(state: LossScaleState, found_inf: Tensor) -> LossScaleState:
    """Returns `state` with every counter one step on, and the scale as it is.

    `good_steps` and `steps_since_rescale` include this step.
    """

    def one_if(condition: Tensor) -> Tensor:
        return ops.cast(condition, state.good_steps.dtype)

    skipped = one_if(found_inf)
    return state._replace(
        good_steps=ops.where(found_inf, 0, state.good_steps + 1),
        skipped_steps=state.skipped_steps + skipped,
        consecutive_skipped_steps=ops.where(
            found_inf, state.consecutive_skipped_steps + 1, 0
        ),
        found_inf=found_inf,
        steps_since_rescale=state.steps_since_rescale + 1,
        overflows_since_rescale=state.overflows_since_rescale + skipped,
    )


def _moved(
    state: LossScaleState, found_inf: Tensor, rule: DynamicLossScale
) -> LossScaleState:
    """Returns the counted `state` after the scale has grown or backed off."""
    grows = ops.logical_and(
        ops.logical_not(found_inf),
        # >= and not ==: the interval may have been lowered meanwhile.
        state.good_steps >= rule.growth_interval + rule.growth_delay,
    )
    left = ops.where(
        found_inf,
        ops.maximum(state.hysteresis_left - 1, 0),
        state.hysteresis_left,
    )
    backs_off = ops.logical_and(
        ops.logical_and(found_inf, left <= 0), _is_intolerable(state, rule)
    )
    scale = ops.where(grows, _grown(state.loss_scale, rule), state.loss_scale)
    scale = ops.where(backs_off, scale * rule.backoff_factor, scale)
    moves = ops.logical_or(grows, backs_off)
    refills = {
        "growth": grows,
        "good_step": ops.logical_not(found_inf),
        "backoff": ops.logical_or(ops.logical_not(found_inf), backs_off),
    }[rule.hysteresis_refill]
    return state._replace(
        loss_scale=ops.clip(scale, rule.min_scale, rule.max_scale),
        good_steps=ops.where(grows, rule.growth_delay, state.good_steps),
        hysteresis_left=ops.where(refills, rule.hysteresis, left),
        steps_since_rescale=ops.where(moves, 0, state.steps_since_rescale),
        # Growth does not forgive earlier overflows: fairseq keeps them too.
        overflows_since_rescale=ops.where(
            backs_off, 0, state.overflows_since_rescale
        ),
    )


def _grown(scale: Tensor, rule: DynamicLossScale) -> Tensor:
    """Returns the scale after growth, or `scale` where that is not finite."""
    grown = scale * rule.growth_factor
    return ops.where(ops.isfinite(grown), grown, scale)


def _is_intolerable(state: LossScaleState, rule: DynamicLossScale) -> Tensor:
    """Returns whether overflows are frequent enough for a backoff."""
    overflows = ops.cast(state.overflows_since_rescale, "float32")
    steps = ops.cast(state.steps_since_rescale, "float32")
    return overflows / steps >= rule.tolerance
