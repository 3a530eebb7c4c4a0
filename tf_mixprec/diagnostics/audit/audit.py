"""`audit`: what is wrong with the precision of a model, without data."""

import collections
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec.conversion import convert
from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.diagnostics.audit import numerics
from tf_mixprec.diagnostics.audit import speed
from tf_mixprec.diagnostics.audit import tables
from tf_mixprec.diagnostics.audit import training
from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.facts import check_is_built
from tf_mixprec.diagnostics.audit.facts import facts_of
from tf_mixprec.diagnostics.audit.layers import AuditedLayer
from tf_mixprec.diagnostics.audit.layers import counted
from tf_mixprec.diagnostics.subject import model_behind
from tf_mixprec.errors import ConversionWarning
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Document
from tf_mixprec.reports import Finding
from tf_mixprec.reports import Report
from tf_mixprec.reports import ranked
from tf_mixprec.training import TrainStep
from tf_mixprec.training import model_autocast


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit(Report):
    """What `mp.audit` found.

    Args:
        verdict: The result in one sentence.
        findings: What a user should know, the worst first.
        model: The name of the model.
        device: The device that it was judged for.
        recommended_policy: The policy that suits it.
        batch_size: The examples in a call.
        layers: One entry per layer.
        multiply_adds: By dtype, those of matrix products and convolutions, for
            an example; without those that are not known.
        not_traced: Why operations are not known; empty if they are.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    >>> [layer.multiply_adds for layer in mp.audit(model).layers]
    [32.0]
    """

    model: str
    device: str
    recommended_policy: str
    batch_size: int
    layers: tuple[AuditedLayer, ...]
    multiply_adds: Mapping[str, float]
    not_traced: str = ""

    def document(self) -> Document:
        """Returns what there is to show."""
        policies = collections.Counter(
            each.policy for each in self.layers if each.policy
        )
        return Document(
            title=f"Audit of {self.model}",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "policies": ", ".join(
                    f"{policy} ({count})" for policy, count in policies.items()
                ),
                "device": self.device,
                "policy that suits it": self.recommended_policy,
                "batch": self.batch_size,
                "parameters": sum(each.parameters for each in self.layers),
            },
            blocks=(
                tables.dtype_table(self.multiply_adds),
                tables.layer_table(self.layers),
                tables.bars(
                    self.layers,
                    "multiply_adds",
                    "Multiply-adds by layer",
                    "for an example",
                ),
                tables.bars(
                    self.layers,
                    "cast_bytes",
                    "Casts by layer",
                    "bytes read and written for an example",
                ),
            ),
        )


def audit(
    model: keras.Model | TrainStep,
    *,
    policy: Any = None,
    batch_size: int = 32,
) -> Audit:
    """Returns what is wrong with the precision of a model, and what it costs.

    The model is not changed, and not run: it is called once on symbols, and
    the values of its variables are read. What needs data, `mp.diagnose` looks
    at.

    ```text
    numbers    softmax, outputs, losses and long sums in 16 bits; constants and
               weights that are 0 or inf there; weights and moving statistics
               that are inf or nan already
    training   no loss scale for float16, no masters for 16-bit variables
    speed      casts that need not be, sizes that tensor cores do not like,
               policies that the device gains nothing from
    ```

    Args:
        model: A `keras.Model` that is built, compiled or not: functional,
            `Sequential` or subclassed; or the `mp.TrainStep` that trains it.
        policy: A policy or `mp.PrecisionRules`: the audit is then of
            `mp.convert(model, policy)`, which is not compiled. Defaults to
            `None`, for the model as it is.
        batch_size: Int: the number of examples in a call. Defaults to 32.

    Returns:
        An `Audit`. Printed, it is a text; `save("audit.html")` writes a page.

    Raises:
        TypeError: If `model` is neither.
        ValueError: If the model is not built, if `batch_size` is not at least
            1, or if the model has no copy with another `policy`.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> with mp.policy_scope("mixed_float16"):
    ...     layers = [keras.layers.Dense(16), keras.layers.Softmax()]
    >>> model = keras.Sequential([keras.Input((8,)), *layers])
    >>> model.compile(keras.optimizers.SGD(), "mse", auto_scale_loss=False)
    >>> found = mp.audit(model).findings
    >>> [each.code for each in found if each.level == "error"]
    ['no-loss-scale']
    >>> mp.audit(mp.convert(model, "mixed_float16")).has_errors
    False
    """
    model = model_behind(model)
    _check_arguments(model, batch_size)
    if policy is not None:
        model = _converted(model, policy)
    facts = facts_of(model, batch_size)
    findings = ranked(
        [
            *training.findings(facts),
            *numerics.findings(facts),
            *speed.findings(facts),
            *_what_is_not_seen(facts),
        ]
    )
    device = facts.recommendation.facts
    return Audit(
        verdict=_verdict(findings),
        findings=findings,
        model=model.name,
        device=f"{device['device']}, {device['name']}",
        recommended_policy=facts.recommendation.policy.name,
        batch_size=batch_size,
        layers=facts.rows,
        multiply_adds=_multiply_adds(facts),
        not_traced=facts.not_traced,
    )


def _check_arguments(model: Any, batch_size: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model` or a `mp.TrainStep`, because its "
            f"layers are looked at. Received: model={model!r}"
        )
    if type(batch_size) is not int or batch_size < 1:
        raise ValueError(
            "`batch_size` must be an int of at least 1, because the model is "
            f"called on that many examples. Received: batch_size={batch_size!r}"
        )
    check_is_built(model)


def _converted(model: Any, policy: Any) -> Any:
    """Returns a copy in another precision; never the model itself, changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConversionWarning)
        try:
            return convert(model, policy)
        except ConversionWarning as warning:
            raise ValueError(
                "`policy` must be one that the model has a copy with, because "
                "an audit does not change the model; convert it yourself "
                f"(`mp.convert`) and audit that. It says: {warning} Received: "
                f"policy={policy!r}"
            ) from None


def _what_is_not_seen(facts: ModelFacts) -> list[Finding]:
    """Returns what the audit could not look at."""
    found = []
    if facts.not_traced:
        found.append(
            Finding(
                # Of others the arguments are guessed.
                level=WARNING if has_graph(facts.model) else INFO,
                code="not-traced",
                layer="",
                what="The model could not be called on symbols.",
                why=(
                    "So operations, multiply-adds and casts are not known: "
                    f"{facts.not_traced}"
                ),
                remedy=(
                    "Call it on a batch to see whether that fails too; give "
                    "it one argument."
                ),
            )
        )
    unknown = {
        each.path for each in facts.ops.products if each.multiply_adds is None
    }
    if unknown:
        found.append(
            Finding(
                level=INFO,
                code="sizes-not-known",
                layer="",
                what=(
                    "Not all sizes are known in "
                    f"{counted(len(unknown), 'layer')}."
                ),
                why=(
                    "Inputs have dimensions of any size, so their "
                    "multiply-adds and bytes are left out, and no sum over "
                    "those dimensions is judged."
                ),
                remedy="Audit the model with a `keras.Input` of one size.",
                value=len(unknown),
            )
        )
    if model_autocast.is_under_autocast(facts.model):
        found.append(
            Finding(
                level=INFO,
                code="under-autocast",
                layer="",
                what="`fit` runs this model under autocast.",
                why="Its operations have other dtypes than policies say.",
                remedy="Ask `mp.autocast_report(mp.autocast(model), ...)`.",
            )
        )
    return found


def _multiply_adds(facts: ModelFacts) -> dict[str, float]:
    return {
        dtype: facts.multiply_adds(dtype) / facts.batch_size
        for dtype in sorted({each.dtype for each in facts.ops.products})
        if facts.multiply_adds(dtype)
    }


def _verdict(findings: tuple[Finding, ...]) -> str:
    counts = collections.Counter(each.level for each in findings)
    numbers = [
        counted(counts[level], level)
        for level in (ERROR, WARNING)
        if counts[level]
    ]
    if numbers:
        worst = findings[0]
        at = f"{worst.layer}: " if worst.layer else ""
        return f"{', '.join(numbers)}: {at}{worst.what}"
    hints = counts[INFO]
    if not hints:
        return "Nothing to mend."
    known = "things are" if hints > 1 else "thing is"
    return f"Nothing to mend: {hints} {known} good to know."
