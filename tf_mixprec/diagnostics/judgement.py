"""From numbers to findings: what is too much, why, and what to change."""

from collections.abc import Iterator
from collections.abc import Sequence

from tf_mixprec.diagnostics.diagnosis import GRADIENT
from tf_mixprec.diagnostics.diagnosis import OUTPUT
from tf_mixprec.diagnostics.diagnosis import WEIGHT
from tf_mixprec.diagnostics.diagnosis import WEIGHT_GRADIENT
from tf_mixprec.diagnostics.diagnosis import TensorDiagnosis
from tf_mixprec.diagnostics.explanations import keep_float32
from tf_mixprec.diagnostics.loss_scale_window import ALLOWED_LOSS
from tf_mixprec.diagnostics.loss_scale_window import LossScaleWindow
from tf_mixprec.diagnostics.updates import UpdateOfVariable
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.numerics.formats import float_format
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding

# Outputs grow in training: an eighth of the largest number is as far as ONNX's
# AutoCast of NVIDIA's Model Optimizer lets them come, in spirit.
LEAST_HEADROOM = 3.0  # bits
MOST_UNDERFLOW = 0.01  # of the nonzero values
LEAST_SQNR = 40.0  # dB; rounding to nearest gives 73 in float16, 55 in bfloat16
MOST_VANISHED = 0.1  # of the nonzero outputs; rounding moves a few to zero
MOST_LOST = 0.01  # of the nonzero gradients of one variable
MOST_DEAD = 0.1  # of the updates of one variable
VANISHED = "vanished-output"
FEW = 16  # values: a share of fewer says little


def of_tensors(
    tensors: Sequence[TensorDiagnosis], loss_scale: float
) -> Iterator[Finding]:
    """Yields what is wrong with tensors in the 16 bits they are in.

    Args:
        tensors: The tensors.
        loss_scale: The loss scale that gradients are multiplied with.
    """
    has_vanished = False
    for each in tensors:
        if not has_16_bits(each.dtype):
            continue
        if _has_vanished(each) and not has_vanished:
            has_vanished = True  # what comes after it follows from it
            yield _vanished(each)
        if each.role in (OUTPUT, WEIGHT):
            yield from _of_values(each)
        elif each.role == GRADIENT:
            continue  # counted where they end, in the weights' gradients
        elif each.role == WEIGHT_GRADIENT and not has_vanished:
            yield from _of_gradient(each, loss_scale)


def _has_vanished(tensor: TensorDiagnosis) -> bool:
    """Returns whether an output becomes zero on the way to it."""
    if tensor.role != OUTPUT or tensor.lost is None:
        return False
    at_the_end = tensor.values.underflow_fraction(tensor.dtype)
    return (
        tensor.lost - at_the_end > MOST_VANISHED
        and tensor.values.nonzero >= FEW
    )


def _vanished(tensor: TensorDiagnosis) -> Finding:
    return Finding(
        level=ERROR,
        code=VANISHED,
        layer=tensor.layer,
        what=f"{tensor.lost:.1%} of the {_of(tensor)} is zero, and not in "
        "float32.",
        why=f"{tensor.dtype} holds the results, and not what they are made "
        "of: a sum or square that is inf, and then divides, leaves zero.",
        remedy=f"Keep the layer in float32: {keep_float32(tensor.layer)}.",
        value=tensor.lost,
    )


def _of_values(tensor: TensorDiagnosis) -> Iterator[Finding]:
    values, dtype = tensor.values, tensor.dtype
    form = float_format(dtype)
    headroom = values.headroom(dtype)
    remedy = f"Keep the layer in float32: {keep_float32(tensor.layer)}"
    if headroom < LEAST_HEADROOM:
        yield Finding(
            level=ERROR if headroom < 0 else WARNING,
            code="headroom",
            layer=tensor.layer,
            what=f"The {_of(tensor)} reaches {values.amax:.5g}, "
            f"{abs(headroom):.1f} bits "
            f"{'beyond' if headroom < 0 else 'from'} the end of {dtype}.",
            why=f"Beyond {form.largest:.5g} there is only inf, and values grow "
            "in training.",
            remedy=f"{remedy}; or normalize what goes in; or train in "
            "mixed_bfloat16, which has the range of float32.",
            value=headroom,
        )
    lost = values.underflow_fraction(dtype)
    if lost > MOST_UNDERFLOW and values.nonzero >= FEW:
        yield Finding(
            level=WARNING,
            code="underflow",
            layer=tensor.layer,
            what=f"{lost:.1%} of the {_of(tensor)} becomes zero in {dtype}.",
            why=f"The smallest magnitude there is {form.smallest_subnormal:.2g}"
            f", and these are as small as {values.smallest:.2g}.",
            remedy=f"{remedy}; or scale the values up.",
            value=lost,
        )
    elif values.sqnr(dtype) < LEAST_SQNR and values.formats[dtype].noise:
        yield Finding(
            level=WARNING,
            code="noise",
            layer=tensor.layer,
            what=f"The {_of(tensor)} keeps {values.sqnr(dtype):.0f} dB of "
            f"signal over rounding in {dtype}.",
            why=f"{values.subnormal_fraction(dtype):.1%} of it is subnormal "
            f"there, below {form.smallest_normal:.2g}, with fewer digits.",
            remedy=f"{remedy}; or scale the values up.",
            value=values.sqnr(dtype),
        )


def _of_gradient(
    tensor: TensorDiagnosis, loss_scale: float
) -> Iterator[Finding]:
    if (
        tensor.lost is None
        or tensor.lost <= MOST_LOST
        or tensor.values.nonzero < FEW
    ):
        return
    remedy = (
        "Raise the loss scale, if the window of scales has room; if not: "
        f"{keep_float32(tensor.layer)}."
    )
    if tensor.dtype == "bfloat16":
        remedy = f"Look at what is so small: {keep_float32(tensor.layer)}."
    yield Finding(
        level=WARNING,
        code="lost-gradients",
        layer=tensor.layer,
        what=f"{tensor.lost:.1%} of the {_of(tensor)} is zero with a loss "
        f"scale of {loss_scale:g}, and not in float32.",
        why=f"On their way back through {tensor.dtype} they fall below "
        f"{float_format(tensor.dtype).smallest_subnormal:.2g}; these weights "
        "stay as they are.",
        remedy=remedy,
        value=tensor.lost,
    )


def _of(tensor: TensorDiagnosis) -> str:
    if tensor.role == OUTPUT:
        return f"output of {tensor.name} ({tensor.layer_class})"
    return f"{tensor.role} {tensor.name}"


def of_window(
    window: LossScaleWindow, loss_scale: float, *, is_dynamic: bool
) -> Iterator[Finding]:
    """Yields what the window of loss scales says of the present one.

    Args:
        window: The loss scales that work.
        loss_scale: The present one.
        is_dynamic: Whether it finds its value by itself.
    """
    lowest, highest = window.lowest, window.highest
    if highest is None:
        return  # gradients are never finite: that has a finding of its own
    if lowest is None:
        yield _no_scale(window, highest)
    elif loss_scale < lowest:
        yield _scale_too_low(window, loss_scale, lowest, is_dynamic=is_dynamic)
    else:
        yield _scales_that_work(window, loss_scale)


def _no_scale(window: LossScaleWindow, highest: float) -> Finding:
    lost = window.lost[highest]
    return Finding(
        level=ERROR,
        code="no-scale-works",
        layer="",
        what=f"No loss scale works: up to {highest:g} gradients are finite, "
        f"and there {lost:.1%} of them are still lost.",
        why=f"{window.highest_limit or 'The loss'} overflows first, and "
        f"{window.lowest_limit} loses most; float16 does not span both.",
        remedy="Keep the first, or the second, in float32: "
        f"{keep_float32(window.highest_limit)}; or train in mixed_bfloat16.",
        value=lost,
    )


def _scale_too_low(
    window: LossScaleWindow,
    loss_scale: float,
    lowest: float,
    *,
    is_dynamic: bool,
) -> Finding:
    remedy = f"Set initial_scale to {lowest:g} or more."
    if is_dynamic:
        remedy = (
            f"Start there: mp.wrap(optimizer, initial_scale={lowest:g}); a "
            "dynamic scale comes there by itself, but doubles only every "
            "growth_interval steps."
        )
    return Finding(
        level=WARNING,
        code="loss-scale-too-low",
        layer="",
        what=f"The loss scale is {loss_scale:g}; from {lowest:g} on no more "
        f"than {ALLOWED_LOSS:.1%} of the gradients are lost.",
        why=f"{window.lowest_limit} loses most of them below that.",
        remedy=remedy,
        value=loss_scale,
    )


def _scales_that_work(window: LossScaleWindow, loss_scale: float) -> Finding:
    limits = []
    if window.lowest_limit:
        limits.append(f"below, {window.lowest_limit} loses gradients")
    if window.highest_limit:
        limits.append(f"above, {window.highest_limit} overflows")
    why = "; ".join(limits) or "Nothing limits it"
    return Finding(
        level=INFO,
        code="loss-scale-window",
        layer="",
        what=f"Loss scales from {window.lowest:g} to {window.highest:g} work; "
        f"the present one is {loss_scale:g}.",
        why=f"{why[0].upper()}{why[1:]}.",
        remedy="Nothing. Another batch can move the ends by a few doublings; "
        "a dynamic scale follows.",
        value=window.highest,
    )


def of_updates(updates: Sequence[UpdateOfVariable]) -> Iterator[Finding]:
    """Yields what is wrong with the updates of an optimizer.

    Args:
        updates: Of the variables; what is rounded stochastically left out, of
            which nothing is lost on average.
    """
    for each in updates:
        if each.dead > MOST_DEAD and each.elements >= FEW:
            remedy = (
                "Raise the learning rate, or freeze the layer: it is kept in "
                f"{each.dtype} already, so masters would not help."
            )
            if has_16_bits(each.dtype):
                remedy = (
                    "Keep a float32 master of it, as mp.wrap does, or the "
                    "variable in float32, as mixed policies do."
                )
            yield Finding(
                level=WARNING,
                code="dead-updates",
                layer="",
                what=f"{each.dead:.1%} of the updates of {each.variable} "
                "change nothing.",
                why="They are below half an ulp of the weight in "
                f"{each.dtype}; the median update is {each.median_ratio:.2g} "
                "of the weight.",
                remedy=remedy,
                value=each.dead,
            )
