"""Tables and figures of a step."""

import math
from typing import Any

from tf_mixprec.diagnostics.records import CallRecord
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.records import TensorRecord
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.numerics.formats import float_format
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Table
from tf_mixprec.reports.document import Block

# The floor of what is drawn: float16 has nothing below 2**-24.
_LARGEST = {"float16 overflows": math.log2(float_format("float16").largest)}


def step_blocks(step: StepRecord) -> tuple[Block, ...]:
    """Returns the way of the numbers through a step.

    Args:
        step: The step.
    """
    outputs = _outputs(step)
    labels = tuple(label for label, _, _ in outputs)
    return (
        Table(
            title="Outputs of the layers, in order, and their gradients",
            columns=(
                "layer",
                "class",
                "dtype",
                "amax",
                "inf",
                "nan",
                "gradient amax",
                "gradient inf",
                "gradient nan",
            ),
            rows=tuple(_row(*each) for each in outputs),
            note="Gradients are of the scaled loss.",
        ),
        Bars(
            title="Largest output of each layer",
            label="log2 of the largest finite magnitude",
            labels=labels,
            values=tuple(_log2(t.values) for _, _, t in outputs),
            bounds=_LARGEST,
        ),
        Bars(
            title="Largest gradient of each output, of the scaled loss",
            label="log2 of the largest finite magnitude",
            labels=labels,
            values=tuple(_log2(t.gradient) for _, _, t in outputs),
            bounds=_LARGEST,
        ),
    )


def label_of(call: CallRecord, index: int = 0) -> str:
    """Returns a name for a call, or for one of several outputs of it.

    Args:
        call: The call.
        index: Which output.
    """
    label = call.path or "(model)"
    if call.occurrence:
        label += f" (call {call.occurrence + 1})"
    return f"{label} [{index}]" if len(call.outputs) > 1 else label


def _outputs(step: StepRecord) -> list[tuple[str, CallRecord, TensorRecord]]:
    return [
        (label_of(call, index), call, tensor)
        for call in step.calls
        for index, tensor in enumerate(call.outputs)
    ]


def _row(label: str, call: CallRecord, tensor: TensorRecord) -> tuple[Any, ...]:
    gradient = tensor.gradient
    return (
        label,
        call.layer_class,
        tensor.dtype,
        tensor.values.amax,
        tensor.values.inf,
        tensor.values.nan,
        *(
            (gradient.amax, gradient.inf, gradient.nan)
            if gradient
            else ("",) * 3
        ),
    )


def _log2(statistics: TensorStatistics | None) -> float | None:
    if statistics is None or statistics.amax == 0:
        return None
    return math.log2(statistics.amax)
