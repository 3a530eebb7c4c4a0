"""The state: where a loss scale stands between two steps."""

from typing import NamedTuple

from tf_mixprec._typing import Tensor


class LossScaleState(NamedTuple):
    """What is kept from one step to the next; `next_state` makes a new one.

    Args:
        loss_scale: Scalar float32 tensor or float, dimensionless: what the
            next loss is multiplied by.
        good_steps: Scalar int tensor, in steps: finite steps in a row since
            the last overflow or growth.
        hysteresis_left: Scalar int tensor, in steps: the overflow, counted
            from now, that will back off; 0 or 1 means the next one.
        skipped_steps: Scalar int tensor, in steps: steps with inf or nan
            since the start.
        consecutive_skipped_steps: Scalar int tensor, in steps: the last of
            these that followed each other directly; 0 after a finite step.
        found_inf: Scalar bool tensor: whether the last step had a gradient
            that was inf or nan.
        steps_since_rescale: Scalar int tensor, in steps: steps since the
            scale last grew or backed off, skipped ones included.
        overflows_since_rescale: Scalar int tensor, in steps: steps with inf
            or nan since the scale last backed off.

    Example:

    >>> LossScaleState(loss_scale=2.0**15).good_steps
    0
    """

    loss_scale: Tensor
    good_steps: Tensor = 0
    hysteresis_left: Tensor = 1
    skipped_steps: Tensor = 0
    consecutive_skipped_steps: Tensor = 0
    found_inf: Tensor = False
    steps_since_rescale: Tensor = 0
    overflows_since_rescale: Tensor = 0
