"""The record of `mp.tune`, and what there is to show of it."""

import dataclasses
import math
from collections.abc import Iterator

from tf_mixprec.diagnostics.tune.trials import Trial
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Document
from tf_mixprec.reports import Report
from tf_mixprec.reports import Table
from tf_mixprec.reports import json_text
from tf_mixprec.reports.document import Block

FLOAT32 = "float32"
MERGED = "float32, merged"
# Of what is drawn, as powers of two: rounding of the loss in float32, whose
# bar has no length; and what stands for inf, which has none either.
_ROUNDING = -24
_HIGHEST = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedLayer:
    """What was decided on a layer that the policy leaves in 16 bits.

    Args:
        path: Its path.
        layer_class: The name of its class.
        score: The root mean square, over examples, of the change of the loss
            that this layer alone makes in 16 bits, as a share of the loss in
            float32; inf where it makes inf or nan.
        change: The change of the mean loss, likewise.
        range_verdict: What is wrong with the range of its outputs; can be
            empty.
        decision: `"float32"`; `"float32, merged"` if it is between exceptions
            and costs less than casts; or the dtype of the policy.
        reason: Why.
    """

    path: str
    layer_class: str
    score: float
    change: float
    range_verdict: str
    decision: str
    reason: str

    @property
    def is_exception(self) -> bool:
        """Whether it stays in float32."""
        return self.decision in (FLOAT32, MERGED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneReport(Report):
    """What `mp.tune` found.

    Args:
        rules: The rules for `mp.convert`.
        is_within_budget: Whether a trial has shown them to be.
        is_complete: Whether the search came to its end.
        model: The name of the model.
        policy: The policy that the exceptions are made from.
        measured: What the budget is a share of: `"loss"`, or a metric.
        budget: The largest increase that is allowed.
        float32_value: The loss, or metric, in float32.
        narrow_value: The same with no exception.
        tuned_value: The same with the rules.
        layers: The layers that the policy leaves in 16 bits.
        trials: What was tried, in its order.
        examples: How many examples the trials had.
        held_out: Whether the scores came of other examples.
        seconds: How long all took.
    """

    rules: PrecisionRules
    is_within_budget: bool
    is_complete: bool
    model: str
    policy: str
    measured: str
    budget: float
    float32_value: float
    narrow_value: float
    tuned_value: float
    layers: tuple[TunedLayer, ...]
    trials: tuple[Trial, ...]
    examples: int
    held_out: bool
    seconds: float

    @property
    def exceptions(self) -> tuple[str, ...]:
        """The paths of the layers that stay in float32."""
        return tuple(each.path for each in self.layers if each.is_exception)

    @property
    def builds(self) -> int:
        """How often the model was traced in a mixture of precisions."""
        return len(self.trials)

    def to_json(self) -> str:
        """Returns all fields, the rules as `mp.PrecisionRules` has them."""
        fields = dataclasses.asdict(self)
        return json_text.rendered({**fields, "rules": self.rules.get_config()})

    def document(self) -> Document:
        """Returns verdict, findings, tables and figures."""
        return Document(
            title=f"Precision of {self.model}, tuned",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "policy": self.policy,
                "budget": f"{self.budget:.3g} of the {self.measured}",
                f"{self.measured} in float32": self.float32_value,
                f"{self.measured} with no exception": self.narrow_value,
                f"{self.measured} tuned": self.tuned_value,
                "builds": self.builds,
                "examples": f"{self.examples}"
                + ("" if self.held_out else ", also those of the scores"),
                "seconds": round(self.seconds, 1),
            },
            blocks=tuple(self._blocks()),
        )

    def _blocks(self) -> Iterator[Block]:
        yield _bars(self)
        yield _layers_table(self)
        yield _trials_table(self)


def _bars(report: TuneReport) -> Bars:
    ranked = sorted(report.layers, key=lambda each: -each.score)
    return Bars(
        title="What each layer alone changes in 16 bits",
        label="doublings of the change of the loss, from 2**"
        f"{_ROUNDING} of it, which is rounding in float32; inf as "
        f"{_HIGHEST - _ROUNDING}",
        labels=tuple(each.path for each in ranked),
        values=tuple(_doublings(each.score) for each in ranked),
        bounds={"budget": _doublings(report.budget)},
    )


def _doublings(share: float) -> float:
    """Returns how long the bar of a share of the loss is: more is worse."""
    if share <= 2.0**_ROUNDING:
        return 0.0
    return min(_HIGHEST, math.log2(share)) - _ROUNDING


def _layers_table(report: TuneReport) -> Table:
    return Table(
        title="Layers",
        columns=(
            "layer",
            "class",
            "score",
            "change",
            "range",
            "decision",
            "reason",
        ),
        rows=tuple(
            (
                each.path,
                each.layer_class,
                each.score,
                each.change,
                each.range_verdict,
                each.decision,
                each.reason,
            )
            for each in report.layers
        ),
        note="Score and change are shares of the loss in float32: of single "
        "examples, the root mean square, and of their mean. Layers that are "
        "in float32 by the rules of the policy are not here.",
    )


def _trials_table(report: TuneReport) -> Table:
    return Table(
        title="Trials",
        columns=(
            "trial",
            "float32",
            report.measured,
            "increase, %",
            "casts",
            "within budget",
            "seconds",
        ),
        rows=tuple(
            (
                number,
                ", ".join(each.exceptions) or "none",
                each.value,
                100 * each.increase,
                each.casts,
                "yes" if each.is_within_budget else "no",
                round(each.seconds, 2),
            )
            for number, each in enumerate(report.trials, 1)
        ),
    )
