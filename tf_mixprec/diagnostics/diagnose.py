"""`diagnose`: what precision does to a model, in one step."""

import functools
from collections.abc import Iterator
from typing import Any

from tf_mixprec.diagnostics import culprit as phases
from tf_mixprec.diagnostics import judgement
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.culprit import backward_culprit
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.data import size_of
from tf_mixprec.diagnostics.diagnosis import GRADIENT
from tf_mixprec.diagnostics.diagnosis import OUTPUT
from tf_mixprec.diagnostics.diagnosis import WEIGHT
from tf_mixprec.diagnostics.diagnosis import WEIGHT_GRADIENT
from tf_mixprec.diagnostics.diagnosis import Diagnosis
from tf_mixprec.diagnostics.diagnosis import TensorDiagnosis
from tf_mixprec.diagnostics.explanations import explained
from tf_mixprec.diagnostics.gradient_step import GradientMatch
from tf_mixprec.diagnostics.gradient_step import GradientStep
from tf_mixprec.diagnostics.in_precision import as_rules
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.loss_scale_window import LossScaleWindow
from tf_mixprec.diagnostics.loss_scale_window import loss_scale_window
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.search import found_in_step
from tf_mixprec.diagnostics.search import highest_finite_scale
from tf_mixprec.diagnostics.step_blocks import label_of
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.diagnostics.updates import UpdateOfVariable
from tf_mixprec.diagnostics.updates import rounds_stochastically
from tf_mixprec.diagnostics.updates import updates_of
from tf_mixprec.diagnostics.without_randomness import without_randomness
from tf_mixprec.reports import Finding
from tf_mixprec.reports import ranked
from tf_mixprec.training.policy_counts import policy_counts

_FLOAT32 = "float32"


def diagnose(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    loss: Any = None,
    policy: Any = None,
    loss_scale: float | None = None,
    batch_size: int = 32,
    jit_compile: bool | None = None,
) -> Diagnosis:
    """Says what 16 bits do to the numbers of a model, layer by layer.

    One training step is made as the model is, one in float32, and some with
    other loss scales, all without dropout; weights, statistics, slots and
    random states stay as they are. The report has, of each output, weight and
    gradient: what underflows, becomes subnormal or overflows, the ratio of
    signal to rounding, and the bits that are left to the largest number; of
    each variable the gradients that are lost, against float32, and the updates
    that change nothing; and the loss scales that work, with what limits them.

    Args:
        model: A compiled `keras.Model`, or a `mp.TrainStep`.
        x: Arrays or tensors whose first axis is the examples, nested as the
            model takes them, or a `tf.data.Dataset` of batches. One batch of
            examples from all over it is used; of a data set its first batch.
        y: The targets. Defaults to none.
        sample_weight: The weights of the examples. Defaults to none.
        loss: As in `model.compile`. Defaults to what the model is compiled
            with.
        policy: A policy or `mp.PrecisionRules`, as for `mp.convert`: what would
            be if the model had it. Defaults to what the layers have.
        loss_scale: What the loss is multiplied with. Defaults to the present
            scale of the optimizer, at its minimum too: this is the scale that
            is judged, and the window has the others.
        batch_size: Int: how many examples the step has. Defaults to 32.
        jit_compile: Whether XLA compiles the steps. Defaults to what the model
            is compiled with.

    Returns:
        A `Diagnosis`: `print(report)`, `report.save("report.html")`,
        `report.findings`, `report.window`, `report.tensors`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no loss, or an argument is out of its range.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((8,)),
    ...         keras.layers.Dense(8, "relu", name="hidden"),
    ...         keras.layers.Dense(1),
    ...     ]
    ... )
    >>> x = np.random.default_rng(0).normal(size=(64, 8))
    >>> y = x.sum(axis=1, keepdims=True)
    >>> report = mp.diagnose(
    ...     model, x, y, loss="mse", policy="mixed_float16", loss_scale=1024
    ... )
    >>> report.culprit is None, report.window.holds(1024)
    (True, True)
    """
    subject = Subject(model, loss)
    batch = Data(x, y, sample_weight, batch_size).spread()
    scale = subject.checked_scale(loss_scale)
    if jit_compile is None:
        jit_compile = subject.jit_compile
    if policy is not None:
        as_rules(policy)
    subject.build(batch)
    return _Examination(subject, batch, policy, scale, jit_compile).report()


class _Examination:
    """The steps that a diagnosis is made of."""

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        policy: Any,
        scale: float,
        jit_compile: bool,
    ):
        self._subject = subject
        self._batch = batch
        self._policy = policy
        self._scale = scale
        options = {"jit_compile": jit_compile}
        self._probed = ProbedStep(subject, **options)
        self._float32 = ProbedStep(subject, **options)
        self._gradients = GradientStep(subject, policy, **options)
        self._references = GradientStep(subject, _FLOAT32, **options)
        self.run = functools.cache(self._run)

    def _run(self, scale: float) -> StepRecord:
        return self._step(self._probed, self._policy, scale)

    def _step(
        self, probed: ProbedStep, policy: Any, scale: float
    ) -> StepRecord:
        model = self._subject.model
        with in_precision(model, policy), without_randomness(model):
            return probed(self._batch, scale)

    def report(self) -> Diagnosis:
        subject, scale = self._subject, self._scale
        step = self.run(scale)
        wide = self._step(self._float32, _FLOAT32, scale)
        culprit = found_in_step(self.run, self._batch, scale)
        references = self._references.gradients(self._batch, 1.0)

        @functools.cache
        def matches_at(scale: float) -> list[GradientMatch]:
            return self._gradients.matches(self._batch, scale, references)

        window = None
        if _has_float16(step):
            window = loss_scale_window(matches_at, self._first_to_overflow)
        tensors = tuple(_tensors(step, wide, matches_at(scale)))
        updates: tuple[UpdateOfVariable, ...] = ()
        if self._policy is None:
            updates = updates_of(subject, self._batch)
        of_tensors = list(judgement.of_tensors(tensors, scale))
        has_vanished = any(e.code == judgement.VANISHED for e in of_tensors)
        findings = ranked(
            [
                *self._of_culprit(culprit),
                *of_tensors,
                # Of what is zero anyway no scale saves the gradients.
                *(() if has_vanished else self._of_window(window)),
                *judgement.of_updates(
                    [] if rounds_stochastically(subject.optimizer) else updates
                ),
            ]
        )
        return Diagnosis(
            verdict=_verdict(findings, window),
            findings=findings,
            model=subject.model.name,
            policy=self._policies(),
            batch_size=size_of(self._batch),
            loss=step.loss,
            float32_loss=wide.loss,
            loss_scale=scale,
            culprit=culprit,
            window=window,
            tensors=tensors,
            updates=updates,
        )

    def _first_to_overflow(self, scale: float) -> str:
        found = backward_culprit(self.run(scale), phases.SCALE)
        return "" if found is None else found.layer

    def _of_culprit(self, culprit: Culprit | None) -> Iterator[Finding]:
        if culprit is None:
            return
        highest = None
        if culprit.phase == phases.SCALE:
            highest = highest_finite_scale(self.run, self._scale)
        yield explained(
            culprit,
            loss_scale=self._scale,
            highest_scale=highest,
            has_dynamic_scale=self._subject.has_dynamic_scale,
        )

    def _of_window(self, window: LossScaleWindow | None) -> Iterator[Finding]:
        if window is not None:
            yield from judgement.of_window(
                window,
                self._scale,
                is_dynamic=self._subject.has_dynamic_scale,
            )

    def _policies(self) -> dict[str, int]:
        model = self._subject.model
        with in_precision(model, self._policy):
            return policy_counts(model)


def _has_float16(step: StepRecord) -> bool:
    return any(
        "float16" in (call.compute_dtype, *(t.dtype for t in call.outputs))
        for call in step.calls
    )


def _tensors(
    step: StepRecord, wide: StepRecord, matches: list[GradientMatch]
) -> Iterator[TensorDiagnosis]:
    """Yields what the dtypes of one step do to the values of another."""
    for call, wide_call in zip(step.calls, wide.calls, strict=True):
        for index, (own, tensor) in enumerate(
            zip(call.outputs, wide_call.outputs, strict=True)
        ):
            facts: dict[str, Any] = {
                "layer": call.path,
                "layer_class": call.layer_class,
                "name": label_of(call, index),
                "dtype": own.dtype,
            }
            yield TensorDiagnosis(
                role=OUTPUT,
                values=tensor.values,
                lost=_vanished(own.values, tensor.values),
                **facts,
            )
            if tensor.gradient is not None:
                yield TensorDiagnosis(
                    role=GRADIENT, values=tensor.gradient, **facts
                )
    yield from _variables(step, wide, matches)


def _vanished(own: TensorStatistics, wide: TensorStatistics) -> float | None:
    """Returns the share that is not zero in float32, and zero in a step."""
    if own.nonfinite or not wide.nonzero:
        return None
    return max(0, own.zero - wide.zero) / wide.nonzero


def _variables(
    step: StepRecord, wide: StepRecord, matches: list[GradientMatch]
) -> Iterator[TensorDiagnosis]:
    dtypes = {call.path: call.compute_dtype for call in step.calls}
    classes = {call.path: call.layer_class for call in step.calls}
    match_of = {each.variable: each for each in matches}
    for variable in wide.variables:
        facts: dict[str, Any] = {
            "layer": variable.layer,
            "layer_class": classes.get(variable.layer, ""),
            "name": f"{variable.layer}/{variable.name}".lstrip("/"),
            "dtype": dtypes.get(variable.layer) or variable.dtype,
        }
        if not variable.trainable:
            continue
        yield TensorDiagnosis(role=WEIGHT, values=variable.values, **facts)
        match = match_of.get(variable.path)
        if variable.gradient is None or match is None:
            continue
        lost: float | None = None  # nothing to compare
        if not match.nonfinite:
            lost = match.lost / match.nonzero if match.nonzero else 0.0
        yield TensorDiagnosis(
            role=WEIGHT_GRADIENT,
            values=variable.gradient,
            lost=lost,
            cosine=match.cosine,
            **facts,
        )


def _verdict(
    findings: tuple[Finding, ...], window: LossScaleWindow | None
) -> str:
    serious = [each for each in findings if each.level != "info"]
    if serious:
        more = f" {len(serious) - 1} more below." if serious[1:] else ""
        return f"{serious[0].what}{more}"
    if window is not None and not window.is_empty:
        return (
            "The numbers are in order. Loss scales from "
            f"{window.lowest:g} to {window.highest:g} work."
        )
    return "The numbers are in order."
