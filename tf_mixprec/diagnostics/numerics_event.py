"""What a monitor has seen: samples of a run, and a step that went wrong."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tf_mixprec.diagnostics.culprit import FORWARD
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.step_blocks import label_of
from tf_mixprec.diagnostics.step_blocks import step_blocks
from tf_mixprec.numerics.formats import float_format
from tf_mixprec.reports import Document
from tf_mixprec.reports import HeatMap
from tf_mixprec.reports import Lines
from tf_mixprec.reports import Report
from tf_mixprec.reports.document import Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The ranges of the tensors of one step.

    Args:
        step: Which step of `fit`, from 1.
        loss: The loss.
        loss_scale: The loss scale.
        outputs: By name, the largest finite magnitude of each output.
        gradients: By name, that of its gradient, of the scaled loss.
    """

    step: int
    loss: float
    loss_scale: float
    outputs: dict[str, float]
    gradients: dict[str, float]


def sample_of(number: int, step: StepRecord) -> Sample:
    """Returns the ranges in a step.

    Args:
        number: Which step of `fit` it is.
        step: The step.
    """
    tensors = [
        (label_of(call, index), tensor)
        for call in step.calls
        for index, tensor in enumerate(call.outputs)
    ]
    return Sample(
        step=number,
        loss=step.loss,
        loss_scale=step.loss_scale,
        outputs={name: tensor.values.amax for name, tensor in tensors},
        gradients={
            name: tensor.gradient.amax
            for name, tensor in tensors
            if tensor.gradient is not None
        },
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumericsEvent(Report):
    """A step of a run with inf or nan.

    Args:
        model: The name of the model.
        step: Which step of `fit`, from 1.
        epoch: In which epoch, from 0.
        batch: Which batch of the epoch, from 0.
        loss_scale: The loss scale of the step.
        culprit: The first tensor with inf or nan; `None` if the step is finite
            when it is made again.
        record: The step, made again.
        history: The samples before it, the latest last.
    """

    model: str
    step: int
    epoch: int
    batch: int
    loss_scale: float
    culprit: Culprit | None
    record: StepRecord
    history: tuple[Sample, ...]

    def document(self) -> Document:
        """Returns verdict, finding, and what was before."""
        before = growth(self.history, self.culprit)
        return Document(
            title=f"Step {self.step} of {self.model}: inf or nan",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "step": self.step,
                "epoch": self.epoch,
                "batch": self.batch,
                "loss": self.record.loss,
                "loss scale": self.loss_scale,
                **({"before": before} if before else {}),
            },
            blocks=(*history_blocks(self.history), *step_blocks(self.record)),
        )


def growth(history: Sequence[Sample], culprit: Culprit | None) -> str:
    """Returns how the output of the culprit has grown, in words.

    A line is fitted to log2 of its largest magnitude. Empty for fewer than
    three samples, and for a culprit that is none of the forward pass.

    Args:
        history: The samples before.
        culprit: The culprit.
    """
    if culprit is None or culprit.phase != FORWARD:
        return ""
    points = [
        (each.step, math.log2(each.outputs[culprit.layer]))
        for each in history
        if each.outputs.get(culprit.layer, 0.0) > 0
    ]
    if len(points) < 3:
        return ""
    steps, bits = np.transpose(points)
    slope = float(np.polyfit(steps, bits, 1)[0])
    return (
        f"the output of {culprit.layer} was up to {2 ** bits[-1]:.5g} at step "
        f"{steps[-1]:.0f}, and has gained {100 * slope:.2g} bits in 100 steps"
    )


def history_blocks(history: Sequence[Sample]) -> tuple[Block, ...]:
    """Returns samples as heat maps, layer by step, and lines.

    Args:
        history: The samples.
    """
    if not history:
        return ()
    steps = tuple(each.step for each in history)
    return (
        _heat_map(
            "Headroom of the outputs", [each.outputs for each in history], steps
        ),
        _heat_map(
            "Headroom of the gradients, of the scaled loss",
            [each.gradients for each in history],
            steps,
        ),
        Lines(
            title="Loss scale",
            x_label="step",
            y_label="loss scale",
            x=steps,
            series={"loss scale": tuple(each.loss_scale for each in history)},
            log_y=True,
        ),
    )


def _heat_map(
    title: str, ranges: Sequence[dict[str, float]], steps: tuple[int, ...]
) -> HeatMap:
    names = tuple(ranges[-1])
    return HeatMap(
        title=title,
        label="bits to the largest float16",
        rows=names,
        columns=tuple(str(step) for step in steps),
        values=tuple(
            tuple(_headroom(each.get(name, 0.0)) for each in ranges)
            for name in names
        ),
    )


def _headroom(amax: float) -> float | None:
    return float_format("float16").headroom(amax) if amax else None
