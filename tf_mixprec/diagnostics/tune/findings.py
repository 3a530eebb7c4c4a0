"""What a user should know of tuned layers, in words."""

import math
from collections.abc import Iterator
from collections.abc import Sequence

from tf_mixprec.diagnostics.explanations import keep_float32
from tf_mixprec.diagnostics.tune.report import MERGED
from tf_mixprec.diagnostics.tune.report import TunedLayer
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding


def percent(share: float) -> str:
    """Returns a share in words, such as `"1.2 %"`."""
    return f"{100 * share:.2g} %" if math.isfinite(share) else "inf or nan"


def than_in_float32(increase: float) -> str:
    """Returns how much worse or better something is, in words.

    Args:
        increase: By how much it is worse, as a share; below 0 it is better.

    Example:

    >>> than_in_float32(-0.012)
    '1.2 % better than in float32'
    """
    if increase == 0:
        return "the same as in float32"
    word = "better" if increase < 0 else "worse"
    return f"{percent(abs(increase))} {word} than in float32"


def of_layers(layers: Sequence[TunedLayer]) -> Iterator[Finding]:
    """Yields the exceptions, and layers without that have little room.

    Args:
        layers: What was decided.
    """
    for each in layers:
        if each.is_exception:
            yield Finding(
                level=INFO,
                code="float32_merged"
                if each.decision == MERGED
                else "float32-exception",
                layer=each.path,
                what=f"{each.path} ({each.layer_class}) stays in float32: "
                f"{each.reason}.",
                why="Without all exceptions the budget is not kept."
                if each.decision != MERGED
                else "It does little work, and casts are work as well.",
                remedy="Nothing: `rules` has it.",
                value=each.score,
            )
        elif "headroom" in each.range_verdict:
            yield Finding(
                level=WARNING,
                code="headroom",
                layer=each.path,
                what=f"{each.path} ({each.layer_class}) stays in "
                f"{each.decision} within the budget, with little room: "
                f"{each.range_verdict}.",
                why="Values grow in training, and beyond the largest number "
                "there is only inf.",
                remedy=f"If steps are skipped: {keep_float32(each.path)}; or "
                "tune again when the model is trained.",
                value=each.score,
            )


def of_search(
    *, is_within_budget: bool, is_complete: bool, builds: int
) -> Iterator[Finding]:
    """Yields what is wrong with the search itself.

    Args:
        is_within_budget: Whether a set within budget was found.
        is_complete: Whether it came to its end.
        builds: How many sets it tried.
    """
    if not is_complete:
        yield Finding(
            level=WARNING,
            code="out_of_trials",
            layer="",
            what=f"The search was cut off after {builds} trials.",
            why="The best set so far is given; there may be one with fewer "
            "exceptions."
            if is_within_budget
            else "None of the sets that were tried is within the budget.",
            remedy="Raise `max_trials` or `max_seconds`.",
            value=float(builds),
        )
    elif not is_within_budget:
        yield Finding(
            level=ERROR,
            code="no-exceptions-suffice",
            layer="",
            what="Even with all these layers in float32 the budget is not "
            "kept.",
            why="Code of the model computes in 16 bits between its layers, or "
            "the budget is below the noise of float32.",
            remedy="Cast to float32 in the code that is weak, or raise "
            "`budget`.",
        )
