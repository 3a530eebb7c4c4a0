"""`find_nonfinite`: which tensor is the first with inf or nan."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_mixprec.diagnostics import culprit as phases
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.explanations import explained
from tf_mixprec.diagnostics.explanations import what_is_bad
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.search import found_in_step
from tf_mixprec.diagnostics.search import highest_finite_scale
from tf_mixprec.diagnostics.step_blocks import step_blocks
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import Document
from tf_mixprec.reports import Finding
from tf_mixprec.reports import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class NonfiniteReport(Report):
    """What `mp.find_nonfinite` found.

    Args:
        model: The name of the model.
        culprit: The first tensor with inf or nan; `None` if there is none.
        batch: The number of the batch it was found in, from 0; of the last one
            if nothing was found.
        loss_scale: The loss scale of the step.
        highest_scale: The highest power of two with finite gradients; `None`
            where the scale is not too high.
        step: All statistics of that step.
    """

    model: str
    culprit: Culprit | None
    batch: int
    loss_scale: float
    highest_scale: float | None
    step: StepRecord

    def document(self) -> Document:
        """Returns verdict, finding, and the way of the numbers through it."""
        return Document(
            title=f"Inf and nan in a step of {self.model}",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "batch": self.batch,
                "loss": self.step.loss,
                "loss scale": self.loss_scale,
            },
            blocks=step_blocks(self.step),
        )


def find_nonfinite(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    loss: Any = None,
    loss_scale: float | None = None,
    batch_size: int = 32,
    jit_compile: bool | None = None,
) -> NonfiniteReport:
    """Finds the first tensor with inf or nan, forward or backward.

    The training step of the model is made on each batch until one is bad, in
    the mode that the model trains in, with XLA too; weights, statistics, slots
    and random states stay as they are. Then the report names the layer and the
    phase: the input, a weight, the forward pass, the loss, the backward pass;
    or the backward pass only since the loss scale is high, which is harmless
    where the scale is dynamic. A statistic of the model that has been written
    by an earlier such step is a second finding.

    Args:
        model: A compiled `keras.Model`, or a `mp.TrainStep`.
        x: Arrays or tensors whose first axis is the examples, nested as the
            model takes them, or a `tf.data.Dataset` of batches.
        y: The targets. Defaults to none.
        sample_weight: The weights of the examples. Defaults to none.
        loss: As in `model.compile`. Defaults to what the model is compiled
            with.
        loss_scale: What the loss is multiplied with. Defaults to the present
            scale of the optimizer.
        batch_size: Int: how many examples a batch has. Defaults to 32.
        jit_compile: Whether XLA compiles the step. Defaults to what the model
            is compiled with.

    Returns:
        A `NonfiniteReport`. `report.culprit` is `None` if all is finite;
        `print(report)`, `report.save("report.html")`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no loss, or an argument is out of its range.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((2,)),
    ...         keras.layers.Rescaling(1e5, dtype="float16", name="rescaling"),
    ...         keras.layers.Dense(1, dtype="float32"),
    ...     ]
    ... )
    >>> x, y = np.ones((4, 2)), np.ones(4)
    >>> report = mp.find_nonfinite(model, x, y, loss="mse")
    >>> report.culprit.phase, report.culprit.layer
    ('forward', 'rescaling')
    """
    subject = Subject(model, loss)
    data = Data(x, y, sample_weight, batch_size)
    scale = subject.checked_scale(loss_scale)
    if jit_compile is None:
        jit_compile = subject.jit_compile
    probed = ProbedStep(subject, jit_compile=jit_compile, full=False)
    count, culprit = 0, None
    for batch in data.batches():
        run = functools.cache(functools.partial(probed, batch))
        culprit = found_in_step(run, batch, scale)
        count += 1
        if culprit is not None:
            break
    if culprit is None:
        culprit = _bad_slot(subject)
    highest = None
    if culprit is not None and culprit.phase == phases.SCALE:
        highest = highest_finite_scale(run, scale)
    report = _report(subject, culprit, count - 1, scale, highest, run(scale))
    if culprit is None or culprit.phase == phases.WEIGHT:
        return report
    return _with_bad_statistic(report, subject)


def _report(
    subject: Subject,
    culprit: Culprit | None,
    batch: int,
    scale: float,
    highest: float | None,
    step: StepRecord,
) -> NonfiniteReport:
    name = subject.model.name
    findings: tuple[Finding, ...] = ()
    verdict = "No inf or nan: loss, gradients and weights are finite."
    if culprit is not None:
        finding = explained(
            culprit,
            loss_scale=scale,
            highest_scale=highest,
            has_dynamic_scale=subject.has_dynamic_scale,
        )
        findings = (finding,)
        verdict = f"{culprit.phase.capitalize()}: {finding.what}"
    return NonfiniteReport(
        verdict=verdict,
        findings=findings,
        model=name,
        culprit=culprit,
        batch=batch,
        loss_scale=scale,
        highest_scale=highest,
        step=step,
    )


def _with_bad_statistic(
    report: NonfiniteReport, subject: Subject
) -> NonfiniteReport:
    """Returns a report that also names a statistic with inf or nan."""
    found = _first_bad(subject.model.non_trainable_variables, phases.WEIGHT)
    if found is None:
        return report
    finding = Finding(
        level=ERROR,
        code="nonfinite-statistic",
        layer="",
        what=what_is_bad(found),
        why="Such a step has written it, although the optimizer skipped it; "
        "predict and evaluate use it, and so do steps in which it is frozen.",
        remedy="Load the last good checkpoint, and train with "
        "mp.compile(..., safe_skip=True): then a skipped step changes no "
        "moving statistic.",
        value=float(found.nan + found.inf),
    )
    return dataclasses.replace(report, findings=(*report.findings, finding))


def _bad_slot(subject: Subject) -> Culprit | None:
    """Returns the first variable of the optimizer with inf or nan."""
    if subject.optimizer is None or not subject.optimizer.built:
        return None
    return _first_bad(subject.optimizer.variables, phases.OPTIMIZER)


def _first_bad(variables: Sequence[Any], phase: str) -> Culprit | None:
    """Returns the first variable with inf or nan."""
    for variable in variables:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        values = keras.ops.convert_to_numpy(variable).astype("float32")
        nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if nan or inf:
            return Culprit(
                phase=phase,
                layer="",
                layer_class="",
                tensor=variable.path,
                dtype=variable.dtype,
                size=values.size,
                nan=nan,
                inf=inf,
            )
    return None
