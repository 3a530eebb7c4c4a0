"""What an audit finds wrong with numbers: sums, softmax, constants, ends."""

from collections.abc import Iterator

import ml_dtypes

from tf_mixprec.diagnostics.audit import constants
from tf_mixprec.diagnostics.audit import weights
from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.layers import counted
from tf_mixprec.diagnostics.audit.layers import is_narrow
from tf_mixprec.diagnostics.audit.layers import shown_path
from tf_mixprec.diagnostics.audit.ops import Sum
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import kinds
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding

_LARGEST = 65504  # of float16
# Where sums of ones stop to grow: the next number is 2 further.
_STALLS = {"float16": 2048, "bfloat16": 256}
_RUNNING = ("Cumsum", "SegmentSumV2", "UnsortedSegmentSum")
_SOFTMAX = ("Softmax", "LogSoftmax")
_DEEP = 4096


def findings(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what is wrong with numbers."""
    yield from _softmaxes(facts)
    yield from _outputs(facts)
    yield from _added_losses(facts)
    yield from _sums(facts)
    yield from _deep_products(facts)
    yield from constants.findings(facts)
    yield from weights.findings(facts)


def _softmaxes(facts: ModelFacts) -> Iterator[Finding]:
    found = {
        (each.path, each.dtype): each.count
        for each in facts.ops.sums
        if each.op_type in _SOFTMAX and has_16_bits(each.dtype)
    }
    if facts.trace is None:
        found = {
            (each.path, each.layer.compute_dtype): None
            for each in facts.layers
            if is_narrow(each.layer) and kinds.kind_of(each.layer) == "softmax"
        }
    for (path, dtype), count in found.items():
        smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        over = f" over {count:,} numbers" if count else ""
        digits = {"float16": 3, "bfloat16": 2}[dtype]
        yield Finding(
            level=WARNING,
            code="softmax-in-16-bits",
            layer=shown_path(path),
            what=f"A softmax{over} is computed in {dtype}.",
            why=(
                f"Its probabilities have {digits} digits, and below "
                f"{smallest:.0e} they are 0, of which the logarithm is -inf."
            ),
            remedy=(
                'Give it `dtype="float32"`, or convert the model with '
                "`mp.convert`, which keeps it in float32 inside."
            ),
            value=count,
        )


def _outputs(facts: ModelFacts) -> Iterator[Finding]:
    dtypes = facts.trace.output_dtypes if facts.trace else ()
    narrow = [dtype for dtype in dtypes if has_16_bits(dtype)]
    if narrow:
        digits = {"float16": 3, "bfloat16": 2}[narrow[0]]
        yield Finding(
            level=WARNING,
            code="output-in-16-bits",
            layer="",
            what=(
                f"The model returns {counted(len(narrow), 'output')} in "
                f"{narrow[0]}."
            ),
            why=(
                "The loss and the metrics get predictions that are rounded to "
                f"{digits} digits, whatever they compute in."
            ),
            remedy=(
                'Give the last layer `dtype="float32"`, as `mp.convert` does.'
            ),
            value=len(narrow),
        )


def _added_losses(facts: ModelFacts) -> Iterator[Finding]:
    dtypes = facts.trace.loss_dtypes if facts.trace else ()
    narrow = [dtype for dtype in dtypes if has_16_bits(dtype)]
    if narrow:
        yield Finding(
            level=WARNING,
            code="added-loss-in-16-bits",
            layer="",
            what=(
                f"Layers or regularizers add {counted(len(narrow), 'term')} to "
                f"the loss in {narrow[0]}."
            ),
            why="Sums of squares overflow in float16, and lose digits.",
            remedy=(
                "Compile with `mp.compile`, which makes regularizers compute "
                "in float32; in a layer, cast before `add_loss`."
            ),
            value=len(narrow),
        )


def _sums(facts: ModelFacts) -> Iterator[Finding]:
    """Yields sums that the dtype has no room for, the longest of a layer."""
    worst: dict[str, Sum] = {}
    for each in facts.ops.sums:
        known = worst.get(each.path)
        if _is_too_long(each) and (
            known is None or (each.count or 0) > (known.count or 0)
        ):
            worst[each.path] = each
    for each in worst.values():
        yield _sum_finding(each, on_gpu=facts.on_gpu)


def _is_too_long(each: Sum) -> bool:
    """Returns whether a sum goes wrong on a CPU, where it was measured.

    Sums and means of bfloat16 are exact to rounding there, as are those of
    float16 along the last axis while they fit.
    """
    count = each.count or 0
    if each.op_type in _RUNNING:
        return count > _STALLS.get(each.dtype, count)
    if each.dtype != "float16":
        return False
    if each.op_type in _SOFTMAX or each.to_the_last_axis:
        return count > _LARGEST
    return count > _STALLS["float16"]


def _sum_finding(each: Sum, *, on_gpu: bool) -> Finding:
    overflows = each.dtype == "float16" and (each.count or 0) > _LARGEST
    if overflows:
        why = (
            f"The sum of as many ones is more than {_LARGEST:,}, which is inf "
            "in float16, and their mean nan."
        )
    else:
        why = (
            f"On a CPU such a sum stops growing at {_STALLS[each.dtype]:,} "
            "equal terms, so it, or the mean made of it, is too small."
        )
    less = INFO if on_gpu else WARNING
    return Finding(
        level=ERROR if overflows else less,
        code="sum-too-long",
        layer=shown_path(each.path),
        what=f"{each.op_type} is over {each.count:,} numbers in {each.dtype}.",
        why=why,
        remedy=(
            "Cast to float32 before it, or use a layer of `mp.layers`, whose "
            "inside is float32."
        ),
        value=each.count,
    )


def _deep_products(facts: ModelFacts) -> Iterator[Finding]:
    deepest: dict[str, int] = {}
    for each in facts.ops.products:
        if each.dtype == "float16" and (each.depth or 0) > _DEEP:
            deepest[each.path] = max(each.depth or 0, deepest.get(each.path, 0))
    for path, depth in deepest.items():
        yield Finding(
            level=INFO,
            code="deep-product",
            layer=shown_path(path),
            what=f"A product sums {depth:,} terms in float16.",
            why=(
                f"It is inf where they are above {_LARGEST / depth:.2g} on "
                "average, whatever the device sums in."
            ),
            remedy=(
                "Watch this layer with `mp.diagnose`; bfloat16 has the range "
                "of float32."
            ),
            value=depth,
        )
