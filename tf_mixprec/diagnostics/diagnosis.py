"""The record of `mp.diagnose`, and what there is to show of it."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence

from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.loss_scale_window import LossScaleWindow
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.diagnostics.updates import UpdateOfVariable
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Document
from tf_mixprec.reports import ExponentHistogram
from tf_mixprec.reports import Lines
from tf_mixprec.reports import Report
from tf_mixprec.reports import Table
from tf_mixprec.reports.document import Block

OUTPUT = "output"
GRADIENT = "gradient of the output"
WEIGHT = "weight"
WEIGHT_GRADIENT = "gradient of the weight"
ROLES = (OUTPUT, GRADIENT, WEIGHT, WEIGHT_GRADIENT)
_SEEN = 5e-4  # of the values: fewer have no height in a histogram


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorDiagnosis:
    """What a dtype does to the values of one tensor.

    Args:
        role: `"output"`, `"gradient of the output"`, `"weight"` or `"gradient
            of the weight"`.
        layer: The path of the layer.
        layer_class: The name of its class.
        name: The layer, and which output or weight of it.
        dtype: The dtype that the model has it in, or casts it to.
        values: Statistics of its values as computed in float32; of gradients,
            those of the scaled loss.
        lost: Of an output or a gradient of a weight, the share of values that
            are not zero in float32 and are zero as the model computes them;
            `None` if it computes inf or nan.
        cosine: Of such a gradient, the cosine between the two.
    """

    role: str
    layer: str
    layer_class: str
    name: str
    dtype: str
    values: TensorStatistics
    lost: float | None = None
    cosine: float | None = None

    @property
    def judged(self) -> str:
        """The format it is judged in: float16 in the place of float32."""
        return self.dtype if has_16_bits(self.dtype) else "float16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis(Report):
    """What `mp.diagnose` found.

    Args:
        model: The name of the model.
        policy: The policies of its layers, and how many have each.
        batch_size: How many examples the step had.
        loss: The loss, as the model computes it.
        float32_loss: The loss in float32.
        loss_scale: The loss scale of the step.
        culprit: The first tensor with inf or nan; `None` if there is none.
        window: The loss scales that work; `None` if no layer is in float16.
        tensors: What the dtypes do to each tensor.
        updates: What the optimizer's step changes in each variable.
    """

    model: str
    policy: dict[str, int]
    batch_size: int
    loss: float
    float32_loss: float
    loss_scale: float
    culprit: Culprit | None
    window: LossScaleWindow | None
    tensors: tuple[TensorDiagnosis, ...]
    updates: tuple[UpdateOfVariable, ...]

    def of_role(self, role: str) -> list[TensorDiagnosis]:
        """Returns the tensors of one role.

        Args:
            role: As in `TensorDiagnosis`.
        """
        return [each for each in self.tensors if each.role == role]

    def document(self) -> Document:
        """Returns verdict, findings, tables and figures."""
        return Document(
            title=f"Numerics of {self.model}",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "policies": ", ".join(
                    f"{name} ({count})" for name, count in self.policy.items()
                ),
                "examples": self.batch_size,
                "loss": self.loss,
                "loss in float32": self.float32_loss,
                "loss scale": self.loss_scale,
                **_window_facts(self.window),
            },
            blocks=tuple(self._blocks()),
        )

    def _blocks(self) -> Iterable[Block]:
        if self.window is not None and any(self.window.lost.values()):
            yield _window_lines(self.window, self.loss_scale)
        yield _histogram(self)
        yield _bars("Headroom of the outputs", self.of_role(OUTPUT))
        yield _bars("Headroom of the gradients", self.of_role(GRADIENT))
        for role in ROLES:
            yield _table(role, self.of_role(role))
        if self.updates:
            yield _updates_table(self.updates)


def _window_facts(window: LossScaleWindow | None) -> dict[str, str]:
    if window is None:
        return {}
    if window.is_empty:
        return {"loss scales that work": "none"}
    return {"loss scales that work": f"{window.lowest:g} to {window.highest:g}"}


def _window_lines(window: LossScaleWindow, loss_scale: float) -> Lines:
    scales = tuple(window.lost)
    marks = {"present": loss_scale}
    if window.lowest is not None:
        marks["lowest"] = window.lowest
    if window.highest is not None:
        marks["highest"] = window.highest
    return Lines(
        title="Gradients that are lost, by loss scale",
        x_label="loss scale",
        y_label="share of the gradients",
        x=scales,
        series={"lost": tuple(window.lost[each] for each in scales)},
        marks=marks,
        log_x=True,
    )


def _histogram(diagnosis: Diagnosis) -> ExponentHistogram:
    """Returns where gradients are beside what float16 holds.

    Gradients are of the scaled loss, so the bands are those of float16 itself.
    """
    counted = {
        "gradients of outputs": _exponents(diagnosis.of_role(GRADIENT)),
        "gradients of weights": _exponents(diagnosis.of_role(WEIGHT_GRADIENT)),
    }
    there = [
        each
        for counts in counted.values()
        for each in counts
        if _share(counts, each) >= _SEEN
    ]
    first, last = min([-28, *there]), max([16, *there])
    exponents = tuple(range(max(first, -60), last + 1))
    return ExponentHistogram(
        title="Exponents of the gradients of the scaled loss",
        exponents=exponents,
        series={
            name: tuple(_share(counts, each) for each in exponents)
            for name, counts in counted.items()
        },
        bands={
            "float16 subnormal": (-24, -15),
            "float16": (-14, 15),
            "overflow": (16, max(16, exponents[-1])),
        },
    )


def _exponents(tensors: Sequence[TensorDiagnosis]) -> Counter[int]:
    total: Counter[int] = Counter()
    for each in tensors:
        total.update(each.values.exponents)
    return total


def _share(counts: Counter[int], exponent: int) -> float:
    return counts[exponent] / max(1, sum(counts.values()))


def _bars(title: str, tensors: Sequence[TensorDiagnosis]) -> Bars:
    headrooms = [each.values.headroom(each.judged) for each in tensors]
    return Bars(
        title=title,
        label="bits between the largest magnitude and overflow",
        labels=tuple(each.name for each in tensors),
        values=tuple(h if math.isfinite(h) else None for h in headrooms),
        keeps_smallest=True,
    )


_COLUMNS = (
    "tensor",
    "dtype",
    "amax",
    "headroom, bits",
    "underflow, %",
    "subnormal, %",
    "overflow, %",
    "SQNR, dB",
    "zero, %",
)


def _table(role: str, tensors: Sequence[TensorDiagnosis]) -> Table:
    is_lost = role == WEIGHT_GRADIENT
    columns = (*_COLUMNS, "lost, %", "cosine") if is_lost else _COLUMNS
    rows = []
    for each in tensors:
        row = _row(each)
        if is_lost:
            lost = None if each.lost is None else 100 * each.lost
            row = (*row, lost, each.cosine)
        rows.append(row)
    return Table(
        title=_TITLES[role],
        columns=columns,
        rows=tuple(rows),
        note="What float32 values become in the dtype; in float16 where that "
        "is float32.",
    )


_TITLES = {
    OUTPUT: "Outputs",
    GRADIENT: "Gradients of the outputs, of the scaled loss",
    WEIGHT: "Weights",
    WEIGHT_GRADIENT: "Gradients of the weights, of the scaled loss",
}


def _row(tensor: TensorDiagnosis) -> tuple[object, ...]:
    values, name = tensor.values, tensor.judged
    return (
        tensor.name,
        tensor.dtype,
        values.amax,
        values.headroom(name),
        100 * values.underflow_fraction(name),
        100 * values.subnormal_fraction(name),
        100 * values.overflow_fraction(name),
        values.sqnr(name),
        100 * values.zero / values.size if values.size else None,
    )


def _updates_table(updates: Sequence[UpdateOfVariable]) -> Table:
    return Table(
        title="What one step of the optimizer changes",
        columns=(
            "variable",
            "stored in",
            "median |update| / |weight|",
            "dead, %",
            "dead in bfloat16, %",
            "dead in float16, %",
        ),
        rows=tuple(
            (
                each.variable,
                each.dtype,
                each.median_ratio,
                100 * each.dead,
                100 * each.dead_bfloat16,
                100 * each.dead_float16,
            )
            for each in updates
        ),
        note="Dead updates are below half an ulp of the weight, and change "
        "nothing. The last two columns: if the weights were stored so.",
    )
