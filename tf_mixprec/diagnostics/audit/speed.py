"""What an audit finds that costs time: casts, sizes, and the device."""

import math
from collections.abc import Iterator
from collections.abc import Mapping

from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.layers import counted
from tf_mixprec.diagnostics.audit.layers import shown_path
from tf_mixprec.diagnostics.audit.ops import Cast
from tf_mixprec.diagnostics.audit.products import Product
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import kinds
from tf_mixprec.policies import precision_rules as rule_words
from tf_mixprec.policies.rules import SAFE
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding

_MULTIPLE = 8
_AMPERE = [8, 0]
_MULTIPLE_ON_AMPERE = 64
# A layer below this share of the multiply-adds is not worth another shape.
_SHARE = 0.05
_LEAST = 0.01  # nor worth a finding
_SHOWN = 5

_WHY = (
    "Tensor cores of GPUs multiply blocks of 8; other sizes are padded or miss "
    "them"
)
_REMEDY = (
    "Take the next multiple of 8 for units, filters, channels or the "
    "vocabulary."
)


def findings(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what costs time."""
    yield from _islands(facts)
    yield from _undone_casts(facts)
    yield from _sizes(facts)
    yield from _batch(facts)
    yield from _large_sizes(facts)
    yield from _device(facts)


def _islands(facts: ModelFacts) -> Iterator[Finding]:
    """Yields float32 layers between 16-bit layers that need no float32."""
    casts = [each for each in facts.ops.casts if not each.of_weight]
    layers = {shown_path(each.path): each.layer for each in facts.layers}
    for row in facts.rows:
        if row.compute_dtype != "float32" or _needs_float32(
            row.path, layers[row.path]
        ):
            continue
        into = [
            c for c in casts if _is_up(c) and shown_path(c.path) == row.path
        ]
        out = [
            c
            for c in casts
            if not _is_up(c)
            and shown_path(c.producer) == row.path
            and has_16_bits(c.target)
        ]
        if into and out:
            yield _island(row.path, row.kind, [*into, *out], facts.batch_size)


def _needs_float32(path: str, layer: object) -> bool:
    kind = kinds.kind_of(layer)
    return kind == "model" or any(
        rule.policy in (rule_words.FLOAT32, rule_words.FLOAT32_INSIDE)
        for rule in SAFE.matching(path, layer, kind)
    )


def _is_up(cast: Cast) -> bool:
    return has_16_bits(cast.source)


def _island(
    path: str, kind: str, casts: list[Cast], batch_size: int
) -> Finding:
    chosen = kind in ("matmul", "convolution", "recurrent")
    size = sum(each.bytes or 0 for each in casts) / batch_size
    return Finding(
        level=INFO if chosen else WARNING,
        code="float32-island",
        layer=path,
        what=(
            "It computes in float32 between 16-bit layers: "
            f"{len(casts)} casts, {size:,.0f} bytes for an example."
        ),
        why=(
            "Each cast is a pass over memory; a layer that does little else "
            "takes longer for them than for its work."
        ),
        remedy=(
            "Give it the policy of its neighbors"
            + (", unless its digits are needed." if chosen else ".")
        ),
        value=size,
    )


def _undone_casts(facts: ModelFacts) -> Iterator[Finding]:
    """Yields values that are widened and at once narrowed again."""
    for each in facts.ops.casts:
        if each.of_weight or each.before != each.target:
            continue
        if has_16_bits(each.target):
            producer = shown_path(each.producer)
            yield Finding(
                level=WARNING,
                code="casts-undone",
                layer=shown_path(each.path),
                what=(
                    f"It casts to {each.target} what {producer} has just cast "
                    f"from {each.target} to {each.source}."
                ),
                why="Two passes over memory change nothing.",
                remedy=(
                    "Let the policies of both agree: an output dtype is for "
                    "the last layer."
                ),
                value=each.bytes,
            )


def padded(size: int, multiple: int) -> int:
    """Returns the next multiple.

    Example:

    >>> padded(10, 8), padded(16, 8)
    (16, 16)
    """
    return -(-size // multiple) * multiple


def _sizes(facts: ModelFacts) -> Iterator[Finding]:
    """Yields layers of odd sizes, the costliest first."""
    by_layer: dict[str, list[Product]] = {}
    for each in facts.ops.products:
        if has_16_bits(each.dtype) and _odd(each.sizes):
            by_layer.setdefault(each.path, []).append(each)
    found = [
        _size_finding(path, products, facts)
        for path, products in by_layer.items()
    ]
    found.sort(key=lambda each: -(each.value or 0.0))
    shown = [each for each in found[:_SHOWN] if (each.value or 0.0) >= _LEAST]
    yield from shown
    if len(found) > len(shown):
        yield _others(found[len(shown) :])


def _odd(sizes: Mapping[str, int]) -> bool:
    return any(size % _MULTIPLE for size in sizes.values())


def _size_finding(
    path: str, products: list[Product], facts: ModelFacts
) -> Finding:
    sizes: dict[str, int] = {}
    for product in products:
        odd = {n: s for n, s in product.sizes.items() if s % _MULTIPLE}
        sizes.update(odd)
    own = sum(each.multiply_adds or 0 for each in products)
    more = sum((each.multiply_adds or 0) * _waste(each) for each in products)
    share = own / (facts.multiply_adds() or math.inf)
    listed = ", ".join(
        f"{size} {name} (next: {padded(size, _MULTIPLE)})"
        for name, size in sizes.items()
    )
    # What goes into it is for others to choose: other layers, or the data.
    is_own = any(name.startswith("output") for name in sizes)
    is_costly = facts.on_gpu and is_own and share >= _SHARE
    return Finding(
        level=WARNING if is_costly else INFO,
        code="size-not-multiple-of-8",
        layer=shown_path(path),
        what=f"Its 16-bit products have {listed}.",
        why=(
            f"{_WHY}: {more / (own or math.inf):.0%} more multiply-adds in a "
            f"layer that has {share:.1%} of the model's."
        ),
        remedy=_REMEDY,
        value=share,
    )


def _waste(product: Product) -> float:
    """Returns how many more multiply-adds padded sizes need, as a share."""
    return (
        math.prod(padded(s, _MULTIPLE) / s for s in product.sizes.values())
        - 1.0
    )


def _others(found: list[Finding]) -> Finding:
    share = sum(each.value or 0.0 for each in found)
    return Finding(
        level=INFO,
        code="size-not-multiple-of-8",
        layer="",
        what=(
            f"The products of {counted(len(found), 'layer')} with {share:.1%} "
            "of the multiply-adds have sizes that are no multiples of 8."
        ),
        why=f"{_WHY}.",
        remedy=_REMEDY,
        value=len(found),
    )


def _batch(facts: ModelFacts) -> Iterator[Finding]:
    narrow = any(has_16_bits(each.dtype) for each in facts.ops.products)
    if narrow and facts.batch_size % _MULTIPLE:
        following = padded(facts.batch_size, _MULTIPLE)
        yield Finding(
            level=INFO,
            code="batch-not-multiple-of-8",
            layer="",
            what=f"The batch has {facts.batch_size} examples.",
            why=(
                "It is a size of the products that gradients of weights are, "
                "and tensor cores multiply blocks of 8."
            ),
            remedy=f"Train on {following} examples.",
            value=facts.batch_size,
        )


def _large_sizes(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what newer GPUs would gain of multiples of 64."""
    capability = facts.recommendation.facts.get("compute_capability")
    if not capability or capability < _AMPERE:
        return
    large = [
        each
        for each in facts.ops.products
        if has_16_bits(each.dtype)
        and not _odd(each.sizes)
        and any(s % _MULTIPLE_ON_AMPERE for s in each.sizes.values())
    ]
    if large:
        own = sum(each.multiply_adds or 0 for each in large)
        share = own / (facts.multiply_adds() or math.inf)
        count = len({each.path for each in large})
        yield Finding(
            level=INFO,
            code="size-not-multiple-of-64",
            layer="",
            what=(
                f"The products of {counted(count, 'layer')} with {share:.0%} "
                "of the multiply-adds have sizes that are multiples of 8, but "
                "not of 64."
            ),
            why=(
                "From compute capability 8.0 on, products are most efficient "
                "in multiples of 64."
            ),
            remedy="Take multiples of 64 where sizes are free to choose.",
            value=share,
        )


def _device(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what does not fit the device, or would."""
    suited = facts.recommendation.policy.compute_dtype
    reason = facts.recommendation.reason
    used = [d for d in ("float16", "bfloat16") if getattr(facts.narrow, d)]
    wrong = [
        dtype
        for dtype in used
        if dtype != suited
        # Tensor cores that multiply bfloat16 multiply float16 as fast.
        and not (facts.on_gpu and suited == "bfloat16")
    ]
    for dtype in wrong:
        yield Finding(
            level=WARNING,
            code="device-gains-nothing",
            layer="",
            what=f"Layers compute in {dtype}, and {suited} suits this device.",
            why=reason,
            remedy=(
                f"Convert the model: `mp.convert(model, "
                f'"{facts.recommendation.policy.name}")`; ignore this if it '
                "is for another machine."
            ),
        )
    if not used and suited != "float32":
        yield Finding(
            level=INFO,
            code="device-could-gain",
            layer="",
            what=f"No layer is in 16 bits, and {suited} suits this device.",
            why=reason,
            remedy="Convert the model: `mp.convert(model)`.",
        )
