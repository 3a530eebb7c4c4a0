"""Where inf or nan comes from: the first tensor that has it.

Forward, tensors are looked at in the order in which they were made. The first
bad one is what a layer returned, which then made it of good inputs; or what a
layer was given, and then it was made between layers: by a cast to the dtype of
the layer, or by the code of a model. Backward the same, in the opposite order.
"""

import dataclasses
from collections.abc import Iterator

from tf_mixprec.diagnostics.records import CallRecord
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.records import TensorRecord
from tf_mixprec.diagnostics.records import VariableRecord
from tf_mixprec.diagnostics.taps import LOSS_PATH
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.numerics.formats import float_format

INPUT = "input"
TARGET = "target"
WEIGHT = "weight"
OPTIMIZER = "optimizer"
FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
SCALE = "loss scale"
PHASES = (INPUT, TARGET, WEIGHT, OPTIMIZER, FORWARD, LOSS, BACKWARD, SCALE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Culprit:
    """The first tensor with inf or nan.

    Args:
        phase: `"input"`, `"target"`, `"weight"` or `"optimizer"`: it is in what
            the step starts from; `"forward"`; `"loss"`: it is computed of good
            predictions; `"backward"`: in gradients, whatever the loss scale;
            `"loss scale"`: in gradients, and only since the scale is so high.
        layer: The path of the layer; empty where it is the model's own code,
            and for what is of no layer.
        layer_class: The name of its class.
        tensor: Which tensor of it, in words.
        dtype: The dtype of the tensor.
        size: How many values it has.
        nan: How many of them are nan.
        inf: How many are inf or -inf.
        made_by: What made it, in words; empty for the layer itself.
        amax: The largest finite magnitude that went in; `None` if not known.
        reduced: How many values each result is made of, for layers that
            average or sum; 0 for others.
        in_code: Whether the code of a model or layer made it, between the
            layers that it calls. Its dtype is then that of the code.
    """

    phase: str
    layer: str
    layer_class: str
    tensor: str
    dtype: str
    size: int
    nan: int
    inf: int
    made_by: str = ""
    amax: float | None = None
    reduced: int = 0
    in_code: bool = False


def bad_variable(
    step: StepRecord, *, only_trained: bool = False
) -> Culprit | None:
    """Returns the first variable with inf or nan.

    Args:
        step: The step.
        only_trained: Whether only variables count that are trained.
    """
    for each in step.variables:
        if each.values.nonfinite and (each.trainable or not only_trained):
            return _of_variable(each, each.values, WEIGHT, each.path)
    return None


def forward_culprit(step: StepRecord) -> Culprit | None:
    """Returns the first tensor of the forward pass with inf or nan."""
    bad = [e for e in _events(step) if e.tensor.values.nonfinite]
    if not bad:
        return None
    event = min(bad, key=lambda each: each.tensor.order)
    frozen = _bad_frozen_variable(step, event)
    if frozen is not None:
        return _of_variable(frozen, frozen.values, WEIGHT, frozen.path)
    made_by = _made_forward(step, event)
    found = _of_event(
        event,
        event.tensor.values,
        FORWARD,
        made_by=made_by,
        amax=_amax_into(step, event),
        reduced=_reduced(event),
    )
    if not made_by.startswith(_CODE):
        return found
    # The layer has cast it since.
    dtypes = {each.path: each.compute_dtype for each in step.calls}
    dtype = dtypes.get(event.call.inside[-1]) or event.tensor.dtype
    return dataclasses.replace(found, in_code=True, dtype=dtype)


def backward_culprit(step: StepRecord, phase: str) -> Culprit | None:
    """Returns the first gradient with inf or nan, from the loss on.

    Args:
        step: The step.
        phase: `"backward"` or `"loss scale"`.
    """
    bad = [
        (each, each.tensor.gradient)
        for each in _events(step)
        if each.tensor.gradient is not None and each.tensor.gradient.nonfinite
    ]
    weights = [
        (each, each.gradient)
        for each in step.variables
        if each.gradient is not None and each.gradient.nonfinite
    ]
    last = max(bad, key=lambda pair: pair[0].tensor.order, default=None)
    weight = max(
        weights, key=lambda pair: _backward_order(step, pair[0]), default=None
    )
    if weight is not None and (
        last is None or _backward_order(step, weight[0]) > last[0].tensor.order
    ):
        variable, gradient = weight
        words = f"gradient of {variable.name}"
        return _of_variable(variable, gradient, phase, words)
    if last is None:
        return None
    event, gradient = last
    made_by = "" if event.is_input else _made_backward(step, event, gradient)
    found = _of_event(event, gradient, phase, made_by=made_by)
    if event.call.path != LOSS_PATH:
        return found
    # What the loss is given: the loss itself made this gradient.
    return dataclasses.replace(
        found,
        layer="",
        phase=LOSS if phase == BACKWARD else phase,
        tensor="gradient of the loss with respect to the predictions",
        made_by="the loss",
    )


@dataclasses.dataclass(frozen=True)
class _Event:
    """A tensor that a call was given or returned."""

    call: CallRecord
    tensor: TensorRecord
    is_input: bool
    index: int
    count: int

    @property
    def words(self) -> str:
        role = "input" if self.is_input else "output"
        return role if self.count == 1 else f"{role} {self.index}"


def _events(step: StepRecord) -> Iterator[_Event]:
    for call in step.calls:
        for tensors, is_input in ((call.inputs, True), (call.outputs, False)):
            for index, tensor in enumerate(tensors):
                yield _Event(call, tensor, is_input, index, len(tensors))


def _of_event(
    event: _Event,
    statistics: TensorStatistics,
    phase: str,
    *,
    made_by: str,
    amax: float | None = None,
    reduced: int = 0,
) -> Culprit:
    words = event.words
    if phase in (BACKWARD, SCALE):
        words = f"gradient of the {words}"
    if event.call.occurrence:
        words += f" in call {event.call.occurrence + 1}"
    return Culprit(
        phase=phase,
        layer=event.call.path,
        layer_class=event.call.layer_class,
        tensor=words,
        dtype=event.tensor.dtype,
        size=statistics.size,
        nan=statistics.nan,
        inf=statistics.inf,
        made_by=made_by,
        amax=amax,
        reduced=reduced,
    )


def _of_variable(
    variable: VariableRecord,
    statistics: TensorStatistics,
    phase: str,
    words: str,
) -> Culprit:
    return Culprit(
        phase=phase,
        layer=variable.layer,
        layer_class="",
        tensor=words,
        dtype=variable.dtype,
        size=statistics.size,
        nan=statistics.nan,
        inf=statistics.inf,
    )


_CODE = "the code of"


def _made_forward(step: StepRecord, event: _Event) -> str:
    """Returns what made a tensor, in words; empty for the layer itself."""
    if not event.is_input:
        return _cast_of_weights(step, event.call)
    inside = event.call.inside
    code = ""
    if inside:
        code = f"{_CODE} {inside[-1]!r}" if inside[-1] else f"{_CODE} the model"
    if event.tensor.values.nan or not _overflows(step, event):
        return code or "what is between the layers"
    return f"the cast of its input to {event.tensor.dtype}"


def _bad_frozen_variable(
    step: StepRecord, event: _Event
) -> VariableRecord | None:
    """Returns a bad variable of a layer that is not trained, but used."""
    own = [e for e in step.variables if e.layer == event.call.path]
    if event.is_input or any(each.trainable for each in own):
        return None
    return next((each for each in own if each.values.nonfinite), None)


def _cast_of_weights(step: StepRecord, call: CallRecord) -> str:
    """Returns which weight of a layer is too large for its dtype, in words."""
    if call.compute_dtype not in ("float16", "bfloat16"):
        return ""
    largest = float_format(call.compute_dtype).largest
    for each in step.variables:
        if each.layer == call.path and each.values.amax > largest:
            return (
                f"the cast of its {each.name}, up to {each.values.amax:.4g}, "
                f"to {call.compute_dtype}"
            )
    return ""


def _overflows(step: StepRecord, event: _Event) -> bool:
    """Returns whether something before was too large for this dtype."""
    if event.tensor.dtype not in ("float16", "bfloat16"):
        return False
    largest = float_format(event.tensor.dtype).largest
    return event.tensor.order == 0 or _amax_before(step, event) > largest


def _amax_before(step: StepRecord, event: _Event) -> float:
    return max(
        (
            each.tensor.values.amax
            for each in _events(step)
            if each.tensor.order < event.tensor.order
        ),
        default=0.0,
    )


def _amax_into(step: StepRecord, event: _Event) -> float | None:
    """Returns the largest magnitude that went into a bad tensor."""
    if event.is_input:
        return _amax_before(step, event) or None
    return max((each.values.amax for each in event.call.inputs), default=None)


def _reduced(event: _Event) -> int:
    """Returns how many input values there are for one output value."""
    given = sum(each.values.size for each in event.call.inputs)
    if event.is_input or not event.tensor.values.size:
        return 0
    return given // event.tensor.values.size


def _made_backward(
    step: StepRecord, event: _Event, gradient: TensorStatistics
) -> str:
    if event.tensor.dtype in ("float16", "bfloat16") and not gradient.nan:
        return f"the cast of the gradient to {event.tensor.dtype}"
    later = [
        each
        for each in _events(step)
        if each.is_input and each.tensor.order > event.tensor.order
    ]
    if not later:
        return "the loss"
    user = min(later, key=lambda each: each.tensor.order).call
    return f"what is between it and {user.path!r}"


def _backward_order(step: StepRecord, variable: VariableRecord) -> float:
    """Returns when the gradient of a variable is made, as orders of tensors."""
    calls = [each for each in step.calls if each.path == variable.layer]
    inputs = [each.order for call in calls for each in call.inputs]
    outputs = [each.order for call in calls for each in call.outputs]
    if inputs:
        return max(inputs)
    return min(outputs, default=0) - 0.5
