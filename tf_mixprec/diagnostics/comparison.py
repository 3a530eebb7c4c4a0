"""The record of `mp.compare`, and what there is to show of it."""

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence

from tf_mixprec.diagnostics.comparison_step import GRADIENT
from tf_mixprec.diagnostics.comparison_step import OUTPUT
from tf_mixprec.diagnostics.comparison_step import WEIGHT_GRADIENT
from tf_mixprec.diagnostics.comparison_step import ComparedTensor
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Document
from tf_mixprec.reports import Lines
from tf_mixprec.reports import Report
from tf_mixprec.reports import Table
from tf_mixprec.reports.document import Block

# Of the gradient of a weight, against float32: errors of 4 % and 14 % of it.
LEAST_COSINE = {"float16": 0.999, "bfloat16": 0.99}
_NEGLIGIBLE = 1e-4  # of the largest gradient of a weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedPolicy:
    """How far a model in one precision is from float32.

    Args:
        policy: The policy, as a string.
        loss: The loss.
        loss_change: Its relative difference to the loss in float32.
        tensors: The tensors, outputs in the order in which layers return.
    """

    policy: str
    loss: float
    loss_change: float
    tensors: tuple[ComparedTensor, ...]

    def of_role(self, role: str) -> list[ComparedTensor]:
        """Returns the tensors of one role.

        Args:
            role: As in `ComparedTensor`.
        """
        return [each for each in self.tensors if each.role == role]

    def is_negligible(self, tensor: ComparedTensor) -> bool:
        """Returns whether a gradient is rounding beside those of others.

        As that of a bias before a normalization, or of a key's bias, which is
        0 but for rounding.

        Args:
            tensor: The gradient of a weight.
        """
        norms = [e.difference.norm for e in self.of_role(WEIGHT_GRADIENT)]
        return tensor.difference.norm < _NEGLIGIBLE * max(norms)

    @property
    def least_cosine(self) -> ComparedTensor | None:
        """The gradient of a weight that points away most from float32."""
        known = [
            each
            for each in self.of_role(WEIGHT_GRADIENT)
            if not math.isnan(each.difference.cosine)
            and not self.is_negligible(each)
        ]
        return min(known, key=lambda e: e.difference.cosine, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Report):
    """What `mp.compare` found.

    Args:
        model: The name of the model.
        float32_loss: The loss in float32.
        loss_scale: The loss scale of all steps.
        policies: One entry for each policy.
        stuck_scale: The scale of the optimizer where it is at its minimum and
            its initial one is taken; `None` where it is not.
    """

    model: str
    float32_loss: float
    loss_scale: float
    policies: tuple[ComparedPolicy, ...]
    stuck_scale: float | None = None

    def document(self) -> Document:
        """Returns verdict, findings, tables and figures."""
        return Document(
            title=f"{self.model} against float32",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "loss in float32": self.float32_loss,
                "loss scale": self._scale_text,
                **{f"loss, {e.policy}": e.loss for e in self.policies},
            },
            blocks=tuple(self._blocks()),
        )

    @property
    def _scale_text(self) -> float | str:
        if self.stuck_scale is None:
            return self.loss_scale
        return (
            f"{self.loss_scale:g}, the initial one; the present one, "
            f"{self.stuck_scale:g}, is at its minimum"
        )

    def _blocks(self) -> Iterator[Block]:
        for role, title in (
            (OUTPUT, "Relative error of the outputs"),
            (GRADIENT, "Relative error of the gradients of the outputs"),
        ):
            lines = _error_lines(title, self.policies, role)
            if _has_values(*lines.series.values()):
                yield lines
        for policy in self.policies:
            bars = _cosine_bars(policy)
            if _has_values(bars.values):
                yield bars
            for role in (OUTPUT, GRADIENT, WEIGHT_GRADIENT):
                yield _table(policy, role)


def _error_lines(
    title: str, policies: Sequence[ComparedPolicy], role: str
) -> Lines:
    longest = max((len(e.of_role(role)) for e in policies), default=0)
    return Lines(
        title=title,
        x_label="number of the output, in order",
        y_label="norm of the error / norm in float32",
        x=tuple(range(1, longest + 1)),
        series={
            each.policy: tuple(
                e.difference.relative_error or None
                if math.isfinite(e.difference.relative_error)
                else None
                for e in each.of_role(role)
            )
            for each in policies
        },
        log_y=True,
    )


def _has_values(*values: Sequence[float | None]) -> bool:
    return any(each is not None for some in values for each in some)


def _cosine_bars(policy: ComparedPolicy) -> Bars:
    tensors = policy.of_role(WEIGHT_GRADIENT)
    return Bars(
        title=f"{policy.policy}: 1 - cosine of the gradients of the weights",
        label="1 - cosine with float32",
        labels=tuple(each.name for each in tensors),
        values=tuple(
            None
            if math.isnan(each.difference.cosine)
            else max(0.0, 1 - each.difference.cosine)
            for each in tensors
        ),
        bounds={f"too far in {k}": 1 - v for k, v in LEAST_COSINE.items()},
    )


_TITLES = {
    OUTPUT: "outputs",
    GRADIENT: "gradients of the outputs",
    WEIGHT_GRADIENT: "gradients of the weights",
}


def _table(policy: ComparedPolicy, role: str) -> Table:
    return Table(
        title=f"{policy.policy}: {_TITLES[role]}",
        columns=(
            "tensor",
            "dtype",
            "relative error",
            "largest error",
            "median ulps",
            "99 % within, ulps",
            "cosine",
            "norm ratio",
            "inf or nan",
        ),
        rows=tuple(
            (
                each.name,
                each.dtype,
                each.difference.relative_error,
                each.difference.max_error,
                each.difference.median_ulps,
                each.difference.most_ulps,
                each.difference.cosine,
                each.difference.norm_ratio,
                each.difference.nonfinite,
            )
            for each in policy.of_role(role)
        ),
        note="Ulps are those of the 16 bits of the policy, at the value in "
        "float32. Inf and nan are counted in the last column only.",
    )
