"""The loss scales that save the gradients and do not overflow.

Found by trying: the model's own backward pass is made with powers of two, and
its gradients are compared with those in float32. So everything counts that is
lost on the way, and not only at its end.
"""

import dataclasses
import functools
from collections.abc import Callable

from tf_mixprec.diagnostics.gradient_step import GradientMatch
from tf_mixprec.diagnostics.gradient_step import is_finite
from tf_mixprec.diagnostics.gradient_step import lost_fraction

ALLOWED_LOSS = 1e-3  # of the nonzero gradients
# What is lost whatever the scale, by rounding before the loss say; a scale with
# more does not work.
MOST_LOSS = 1e-2
LOWEST_EXPONENT = -24
HIGHEST_EXPONENT = 40  # far beyond any scale in use; the loss stays finite

Try = Callable[[float], list[GradientMatch]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossScaleWindow:
    """Loss scales that work for a batch.

    Args:
        lowest: The lowest power of two, at least 1, with which no more than
            0.1 % of the gradients are lost, or than `highest` loses; `None` if
            that loses more than 1 %.
        highest: The highest power of two with finite gradients; `None` if
            there is none.
        lowest_limit: The path of the variable that loses most gradients below
            `lowest`; below `highest` where there is no lowest. Empty if none is
            lost.
        highest_limit: The path of the layer whose gradient overflows first
            above `highest`; empty if none does.
        lost: The share of gradients that is lost, by loss scale, as tried.
    """

    lowest: float | None
    highest: float | None
    lowest_limit: str
    highest_limit: str
    lost: dict[float, float]

    @property
    def is_empty(self) -> bool:
        """Whether no loss scale works."""
        return self.lowest is None or self.highest is None

    def holds(self, loss_scale: float) -> bool:
        """Returns whether a loss scale is in it."""
        if self.lowest is None or self.highest is None:
            return False
        return self.lowest <= loss_scale <= self.highest


def loss_scale_window(
    matches_at: Try, limit_at: Callable[[float], str]
) -> LossScaleWindow:
    """Returns the window of loss scales, by bisection over powers of two.

    Args:
        matches_at: From a loss scale to how gradients compare with float32.
        limit_at: From a loss scale that overflows to the path of the layer
            whose gradient does first.
    """
    tried = functools.cache(lambda exponent: matches_at(2.0**exponent))
    highest = _last(
        lambda exponent: is_finite(tried(exponent)),
        LOWEST_EXPONENT,
        HIGHEST_EXPONENT,
    )
    if highest is None:
        return LossScaleWindow(
            lowest=None,
            highest=None,
            lowest_limit="",
            highest_limit=limit_at(2.0**LOWEST_EXPONENT),
            lost={},
        )
    lost = {2.0**highest: lost_fraction(tried(highest))}
    least = lost[2.0**highest]
    allowed = max(ALLOWED_LOSS, least if least <= MOST_LOSS else 0.0)

    def loses_too_much(exponent: int) -> bool:
        lost[2.0**exponent] = lost_fraction(tried(exponent))
        return lost[2.0**exponent] > allowed

    start = min(0, highest)
    below = _last(loses_too_much, start, highest)
    lowest = start if below is None else below + 1
    loses_below = tried(highest if below is None or lowest > highest else below)
    return LossScaleWindow(
        lowest=2.0**lowest if lowest <= highest else None,
        highest=2.0**highest,
        lowest_limit=_loses_most(loses_below) if below is not None else "",
        highest_limit=(
            limit_at(2.0 ** (highest + 1)) if highest < HIGHEST_EXPONENT else ""
        ),
        lost=dict(sorted(lost.items())),
    )


def _last(holds: Callable[[int], bool], first: int, last: int) -> int | None:
    """Returns the last number with a property that ends somewhere.

    Args:
        holds: Whether a number has it: all up to some number have it.
        first: The first number that counts.
        last: The last one.
    """
    if not holds(first):
        return None
    if holds(last):
        return last
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _loses_most(matches: list[GradientMatch]) -> str:
    worst = max(matches, key=lambda each: each.lost)
    return worst.variable if worst.lost else ""
