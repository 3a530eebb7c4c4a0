"""What a culprit means, and what to change."""

from collections.abc import Callable

from tf_mixprec.diagnostics import culprit as phases
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.numerics.formats import float_format
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding

# A mean of more elements than the largest float16 has is nan on CPUs.
_MANY = int(float_format("float16").largest)
_CODES = {
    phases.INPUT: "nonfinite-input",
    phases.TARGET: "nonfinite-target",
    phases.WEIGHT: "nonfinite-weight",
    phases.OPTIMIZER: "nonfinite-optimizer",
    phases.FORWARD: "nonfinite-forward",
    phases.LOSS: "nonfinite-loss",
    phases.BACKWARD: "nonfinite-backward",
    phases.SCALE: "loss-scale-too-high",
}


def explained(
    culprit: Culprit,
    *,
    loss_scale: float,
    highest_scale: float | None = None,
    has_dynamic_scale: bool = False,
) -> Finding:
    """Returns a culprit as a finding, with reason and remedy.

    Args:
        culprit: What was found.
        loss_scale: The loss scale of the step.
        highest_scale: The highest power of two with finite gradients, where
            the scale is too high.
        has_dynamic_scale: Whether the scale comes down by itself.
    """
    why, remedy = _EXPLAIN[culprit.phase](culprit)
    level = ERROR
    if culprit.phase == phases.SCALE:
        level = INFO if has_dynamic_scale else WARNING
        why, remedy = _of_scale(loss_scale, highest_scale, has_dynamic_scale)
    return Finding(
        level=level,
        code=_CODES[culprit.phase],
        layer=culprit.layer,
        what=what_is_bad(culprit),
        why=why,
        remedy=remedy,
        value=float(culprit.nan + culprit.inf),
    )


def what_is_bad(culprit: Culprit) -> str:
    """Returns which values are inf or nan, a sentence."""
    kinds = [
        f"{count} {word}"
        for count, word in ((culprit.inf, "inf"), (culprit.nan, "nan"))
        if count
    ]
    where = f"The {culprit.tensor}"
    if culprit.phase in (phases.WEIGHT, phases.OPTIMIZER):  # by its path
        where = f"The variable {culprit.tensor}"
    elif culprit.layer:
        name = culprit.layer
        if culprit.layer_class:
            name += f" ({culprit.layer_class})"
        where += f" of {name}"
    text = (
        f"{where}, {culprit.dtype}, has {' and '.join(kinds)} among "
        f"{culprit.size} values"
    )
    return (
        f"{text}, made by {culprit.made_by}." if culprit.made_by else f"{text}."
    )


def keep_float32(layer: str) -> str:
    """Returns how to keep a layer in float32, as code."""
    return (
        f'mp.rules.Rule(policy="float32", path={layer!r}) before the rules of '
        "mp.rules.SAFE, in mp.PrecisionRules for mp.convert"
    )


def _of_input(culprit: Culprit) -> tuple[str, str]:
    return (
        "The data are bad before any layer sees them, so no precision and no "
        "loss scale can help.",
        "Look at these examples; leave them out, or replace the values where "
        "the data are read (np.nan_to_num, keras.ops.where).",
    )


def _of_weight(culprit: Culprit) -> tuple[str, str]:
    return (
        "An earlier step has written it, or it was loaded so; every step from "
        "now on uses it.",
        "Load the last good checkpoint, and train with mp.compile(..., "
        "safe_skip=True): then a bad step changes no weight and no moving "
        "statistic.",
    )


def _of_optimizer(culprit: Culprit) -> tuple[str, str]:
    return (
        "An earlier step has written it, and the next update takes it into the "
        "weights.",
        "Load the last good checkpoint, and wrap the optimizer with mp.wrap, "
        "which skips steps with inf or nan.",
    )


def _of_forward(culprit: Culprit) -> tuple[str, str]:
    if not has_16_bits(culprit.dtype):
        return _of_float32_forward(culprit)
    if culprit.in_code:
        return _of_code(culprit)
    form = float_format(culprit.dtype)
    into = _what_went_in(culprit)
    if culprit.dtype == "float16" and culprit.reduced > _MANY:
        return (
            f"Each result is made of {culprit.reduced} values: a sum of so "
            f"many passes {form.largest:g}, the largest float16, and their "
            f"number itself is inf in float16.{into}",
            f"Sum in float32: {keep_float32(culprit.layer)}; mp.layers has "
            "averages that are float32 inside.",
        )
    if culprit.inf or culprit.dtype == "float16":
        remedy = f"Keep the layer in float32: {keep_float32(culprit.layer)}."
        if culprit.dtype == "float16":
            remedy += (
                " Or train in mixed_bfloat16, which has the range of float32; "
                "or normalize what goes in."
            )
        inside = ""
        if culprit.amax is not None and culprit.amax <= form.largest:
            inside = (
                " So it comes of what the layer computes: a sum, a product or "
                "an exponential passes that; or a quotient or logarithm of 0, "
                f"which numbers below {form.smallest_subnormal:.2g} become."
            )
        return (
            f"Its inputs are finite, and {culprit.dtype} ends at "
            f"{form.largest:.5g}.{into}{inside}",
            remedy,
        )
    return _of_float32_forward(culprit)


def _what_went_in(culprit: Culprit) -> str:
    if culprit.amax is None:
        return ""
    return f" The largest magnitude that went in is {culprit.amax:.4g}."


def _of_code(culprit: Culprit) -> tuple[str, str]:
    largest = float_format(culprit.dtype).largest
    return (
        f"That code computes in {culprit.dtype}, between the layers that it "
        f"calls, and {culprit.dtype} ends at {largest:.5g}: a sum, a product "
        "or an exponential passes that, or a quotient has a 0 below.",
        "Cast to float32 there, keras.ops.cast(x, 'float32'), and back; or "
        "put it into a layer with dtype='float32'; or train in "
        "mixed_bfloat16, which has the range of float32.",
    )


def _of_float32_forward(culprit: Culprit) -> tuple[str, str]:
    into = _what_went_in(culprit)
    return (
        "Its inputs are finite, and it computes something without a finite "
        "result: a quotient by 0, a logarithm of 0, a root of a negative "
        f"number, or values that have grown too large.{into}",
        "Bound what goes into the quotient, logarithm or root (mp.epsilon "
        "gives a number that counts in a dtype); where values have been "
        "growing, lower the learning rate, or clip the gradients.",
    )


def _of_loss(culprit: Culprit) -> tuple[str, str]:
    return (
        "The predictions are finite, and the loss or its gradient is not: a "
        "logarithm of 0, a quotient by 0, a root at 0, or an exponential of a "
        "large number.",
        "Give the loss logits (from_logits=True) in the place of "
        "probabilities, or add mp.epsilon of the dtype inside of the logarithm "
        "or root; compute it in float32.",
    )


def _of_backward(culprit: Culprit) -> tuple[str, str]:
    if has_16_bits(culprit.dtype) and culprit.inf and not culprit.nan:
        largest = float_format(culprit.dtype).largest
        return (
            f"With a loss scale of 1 it is beyond {largest:.5g}, the end of "
            f"{culprit.dtype}: lowering the scale to 1 does not help.",
            "Make the loss smaller, a mean in the place of a sum say; or train "
            "in mixed_bfloat16, which has the range of float32; or keep the "
            f"layer in float32: {keep_float32(culprit.layer)}.",
        )
    return (
        "The loss is finite, and this gradient is not, even with a loss scale "
        "of 1: lowering the scale does not help.",
        "Look at roots, norms, quotients and powers in this layer, whose "
        "derivative at 0 is infinite; or keep it in float32: "
        f"{keep_float32(culprit.layer)}.",
    )


def _of_scale(
    loss_scale: float, highest_scale: float | None, is_dynamic: bool
) -> tuple[str, str]:
    why = (
        f"With a loss scale of {loss_scale:g} this gradient overflows; with 1 "
        "all are finite."
    )
    if highest_scale is not None:
        why += f" The highest power of two that works is {highest_scale:g}."
    if is_dynamic:
        return why, (
            "Nothing: a dynamic loss scale skips this step and comes down by "
            "itself; that is how it finds its value."
        )
    return why, (
        f"Lower the scale to {highest_scale or loss_scale / 2:g} or less, or "
        "let it find its value: mp.wrap(optimizer), which is dynamic."
    )


_EXPLAIN: dict[str, Callable[[Culprit], tuple[str, str]]] = {
    phases.INPUT: _of_input,
    phases.TARGET: _of_input,
    phases.WEIGHT: _of_weight,
    phases.OPTIMIZER: _of_optimizer,
    phases.FORWARD: _of_forward,
    phases.LOSS: _of_loss,
    phases.BACKWARD: _of_backward,
    phases.SCALE: _of_backward,
}
