"""What would make a step faster, judged by times that were measured.

```text
gain of a change    the part of the step's time that is left, from 0 to 1
policy, xla         by the ratios of variants
casts               at most their share of the time of all operations
optimizer           at most its share of the step
batch               by the time of an example
```
"""

from collections.abc import Iterator
from typing import NamedTuple

from tf_mixprec.diagnostics.profile.records import BatchTime
from tf_mixprec.diagnostics.profile.records import Measured
from tf_mixprec.diagnostics.profile.records import Variant
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding
from tf_mixprec.reports import ranked

CHANGES = 3  # that are named
_WORTH_IT = 0.95  # less than that is the noise of a measurement
_LARGE = 0.9  # what is left after a change that nobody should miss
_CASTS = 0.05
_OPTIMIZER = 0.25
_SHOWN = 5


class Change(NamedTuple):
    """Something to change, and what it gains.

    Args:
        left: The part of the time that is left, from 0 to 1.
        finding: What to do.
    """

    left: float
    finding: Finding


def changes(measured: Measured) -> list[Change]:
    """Returns what to change, the most useful first, at most `CHANGES`.

    Args:
        measured: The times.
    """
    found = [
        *_other_variants(measured),
        *_casts(measured),
        *_optimizer(measured),
        *_batch(measured),
    ]
    return sorted(found, key=lambda each: each.left)[:CHANGES]


def findings(measured: Measured) -> tuple[Finding, ...]:
    """Returns the changes, then what else is good to know.

    Args:
        measured: The times.
    """
    return ranked(
        [
            *(each.finding for each in changes(measured)),
            *_batch_statistics(measured),
            *_not_faster(measured),
            *_ceiling(measured),
            *_below_noise(measured),
        ]
    )


def verdict(measured: Measured) -> str:
    """Returns the result in a sentence or two.

    Args:
        measured: The times.
    """
    first, *others = measured.variants
    if others:
        best = min(others, key=lambda each: each.ratio)
        text = (
            f"{best.label} takes {best.ratio:.2f} of the time of {first.label} "
            f"({best.ratio_p10:.2f} to {best.ratio_p90:.2f})."
        )
    else:
        text = f"A step in {first.label} takes {first.step_ms:.3g} ms."
    found = changes(measured)
    if not found:
        return f"{text} There is nothing that would make it much faster."
    return f"{text} First of all: {found[0].finding.remedy}"


def current_variant(measured: Measured) -> Variant:
    """Returns the variant that changes are compared with."""
    return measured.variants[measured.current or 0]


def _other_variants(measured: Measured) -> Iterator[Change]:
    """Yields the best other policy, and XLA the other way."""
    now = current_variant(measured)
    others = [each for each in measured.variants if each is not now]
    policies = [e for e in others if e.jit_compile == now.jit_compile]
    xla = [e for e in others if e.policy == now.policy]
    both = [e for e in others if e not in policies and e not in xla]
    lefts = []
    for code, candidates in (("policy", policies), ("xla", xla)):
        if not candidates:
            continue
        best = min(candidates, key=lambda each: each.ratio)
        lefts.append(best.ratio / now.ratio)
        yield from _variant(code, best, now)
    if both:
        best = min(both, key=lambda each: each.ratio)
        if best.ratio / now.ratio < _WORTH_IT * min(lefts, default=1.0):
            yield from _variant("policy-and-xla", best, now)


def _variant(code: str, best: Variant, now: Variant) -> Iterator[Change]:
    left = best.ratio / now.ratio
    if left > _WORTH_IT or _is_noise(best, now):
        return
    switch = f"turn XLA {'on' if best.jit_compile else 'off'} (`jit_compile`)"
    remedies = {
        "policy": f"train in {best.policy}",
        "xla": switch,
        "policy-and-xla": f"train in {best.policy} and {switch}",
    }
    yield _change(
        left,
        code=code,
        what=f"A step in {best.label} takes {left:.2f} of the time.",
        why=f"It takes {best.step_ms:.3g} ms, and now, in {now.label}, "
        f"{now.step_ms:.3g} ms.",
        remedy=_sentence(remedies[code]),
    )


def _is_noise(best: Variant, now: Variant) -> bool:
    """Returns whether in some of the rounds it was the other way."""
    return best.ratio_p90 >= now.ratio or best.ratio >= now.ratio_p10


def _casts(measured: Measured) -> Iterator[Change]:
    now = current_variant(measured)
    if now.op_times is None or now.op_times.cast_share < _CASTS:
        return
    share = now.op_times.cast_share
    yield _change(
        1.0 - share,
        code="casts",
        what=f"Casts are {share:.0%} of the time of the operations.",
        why=f"There are {now.graph.casts} to or from 16 bits, of "
        f"{now.graph.cast_bytes / 2**20:.3g} MiB in all.",
        remedy="Keep neighboring layers in one precision; `mp.audit` names "
        "those that stand alone.",
    )


def _optimizer(measured: Measured) -> Iterator[Change]:
    now = current_variant(measured)
    share = now.optimizer_share
    if share < _OPTIMIZER:
        return
    yield _change(
        1.0 - share,
        code="optimizer",
        what=f"The optimizer is {share:.0%} of the step.",
        why=f"It takes {now.optimizer_ms:.3g} ms, however large the batch is; "
        "without it the rest of the time would be left.",
        remedy="Let XLA compile the update, `mp.wrap(optimizer, "
        "jit_compile=True)`, or give it larger batches.",
    )


def _batch(measured: Measured) -> Iterator[Change]:
    here = _this_size(measured)
    if here is None:
        return
    best = max(measured.batches, key=lambda each: each.examples_per_second)
    left = here.examples_per_second / best.examples_per_second
    if left > _WORTH_IT:
        return
    yield _change(
        left,
        code="batch",
        what=f"An example of a batch of {best.batch_size} takes {left:.2f} of "
        "the time.",
        why=_of_ceilings(here, best)
        or f"They are {best.examples_per_second:,.0f} a second, and "
        f"{here.examples_per_second:,.0f} in a batch of {here.batch_size}.",
        remedy=f"Train with batches of {best.batch_size}, and another learning "
        "rate.",
    )


def _of_ceilings(here: BatchTime, best: BatchTime) -> str:
    if here.ceiling_share is None or best.ceiling_share is None:
        return ""
    return (
        f"A batch of {here.batch_size} reaches {here.ceiling_share:.2g} of the "
        f"speed of large matrix products, one of {best.batch_size} reaches "
        f"{best.ceiling_share:.2g}."
    )


def _this_size(measured: Measured) -> BatchTime | None:
    for each in measured.batches:
        if each.batch_size == measured.batch_size:
            return each
    return None


def _batch_statistics(measured: Measured) -> Iterator[Finding]:
    layers = measured.batch_statistics
    if not layers or not measured.batches:
        return
    named = ", ".join(layers[:_SHOWN])
    more = f" and {len(layers) - _SHOWN} more" if layers[_SHOWN:] else ""
    yield Finding(
        level=WARNING,
        code="batch-statistics",
        layer=layers[0],
        what=f"Batches of another size give other statistics: {named}{more}.",
        why="These layers average over the examples of a batch, so the "
        "network that is trained is another one.",
        remedy="Judge a new size by its validation, and not by its speed.",
        value=float(len(layers)),
    )


def _not_faster(measured: Measured) -> Iterator[Finding]:
    """Yields why policies in 16 bits gain nothing over float32."""
    first = measured.variants[0]
    for each in measured.variants[1:]:
        is_narrow = set(each.graph.ops) & {"bfloat16", "float16"}
        if not is_narrow or each.jit_compile != first.jit_compile:
            continue
        if each.ratio > _WORTH_IT:
            yield Finding(
                level=INFO,
                code="not-faster",
                layer="",
                what=f"A step in {each.label} takes {each.ratio:.2f} of the "
                f"time of {first.label}.",
                why=_reasons(each, first),
                remedy="Train in float32 on this device, or with a batch or "
                "layers that are large enough for 16 bits to pay.",
                value=each.ratio,
            )


def _reasons(variant: Variant, first: Variant) -> str:
    """Returns what keeps 16 bits from being faster, in numbers."""
    reasons = []
    if variant.op_times is not None:
        reasons.append(
            f"casts are {variant.op_times.cast_share:.0%} of the time of its "
            "operations"
        )
    reasons.append(
        "the optimizer, which works in float32, is "
        f"{first.optimizer_share:.0%} of the step in {first.label}"
    )
    if first.ceiling_share is not None:
        reasons.append(
            "matrix products, which 16 bits make faster, need be no more than "
            f"{first.ceiling_share:.2g} of it"
        )
    return _sentence("; ".join(reasons))


def _ceiling(measured: Measured) -> Iterator[Finding]:
    now = current_variant(measured)
    share = now.ceiling_share
    if share is None:
        return
    yield Finding(
        level=INFO,
        code="ceiling",
        layer="",
        what=f"The step reaches {share:.2g} of the speed of large matrix "
        "products.",
        why="Its multiply-adds would take "
        f"{now.ceiling_ms:.3g} of {now.step_ms:.3g} ms; the rest is memory, "
        "small operations and starting them.",
        remedy="A precision in which products are faster gains no more than "
        "that part.",
        value=share,
    )


def _below_noise(measured: Measured) -> Iterator[Finding]:
    """Yields the parts of a step that could not be told from nothing."""
    found = [
        f"{part} in {each.label}"
        for each in measured.variants
        for part in each.below_noise
    ]
    if found:
        yield Finding(
            level=INFO,
            code="below-noise",
            layer="",
            what="Parts of a step are shown as 0 that are not: "
            f"{', '.join(found)}.",
            why="A part is a difference of two times, and here that was below "
            "0: less than the noise of this machine lets one see.",
            remedy="Measure more `rounds`, for more `seconds`, with larger "
            "batches, or on a machine with less to do.",
            value=float(len(found)),
        )


def _change(
    left: float, *, code: str, what: str, why: str, remedy: str
) -> Change:
    level = WARNING if left < _LARGE else INFO
    finding = Finding(
        level=level,
        code=code,
        layer="",
        what=what,
        why=why,
        remedy=remedy,
        value=left,
    )
    return Change(left, finding)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
