"""What is known of a model before it is judged."""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.diagnostics.audit.layers import AuditedLayer
from tf_mixprec.diagnostics.audit.layers import audited_layers
from tf_mixprec.diagnostics.audit.layers import layers_of
from tf_mixprec.diagnostics.audit.ops import OpFacts
from tf_mixprec.diagnostics.audit.ops import op_facts
from tf_mixprec.diagnostics.audit.trace import ModelTrace
from tf_mixprec.diagnostics.audit.trace import model_trace
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.policies.recommendation import Recommendation
from tf_mixprec.policies.recommendation import recommended_policy
from tf_mixprec.training.sixteen_bits import SixteenBitLayers

_NO_OPS = OpFacts(products=(), casts=(), sums=(), constants=())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the checks look at.

    Args:
        model: The model.
        layers: Its layers, with their paths.
        rows: What is shown of them.
        ops: What its operations are; empty if it was not traced.
        trace: The trace; `None` if there is none.
        not_traced: Why there is none.
        narrow: Its layers in 16 bits.
        recommendation: What suits the device.
        batch_size: The examples in a call.
    """

    model: Any
    layers: Sequence[TappedLayer]
    rows: tuple[AuditedLayer, ...]
    ops: OpFacts
    trace: ModelTrace | None
    not_traced: str
    narrow: SixteenBitLayers
    recommendation: Recommendation
    batch_size: int

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on GPUs here."""
        return self.recommendation.facts["kind"] == "GPU"

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that the model is compiled with, each once.

        A model with a `compile` of its own has them as attributes.
        """
        if not self.model.compiled:
            return []
        attributes = vars(self.model).items()
        others = {
            id(value): value
            for name, value in attributes
            if isinstance(value, keras.optimizers.Optimizer)
            and name != "optimizer"
        }
        own = getattr(self.model, "optimizer", None)
        if own is None or (
            others and type(self.model).compile is not keras.Model.compile
        ):
            return list(others.values())
        return [own]

    def multiply_adds(self, dtype: str = "") -> int:
        """Returns those in a call that are known, of a dtype or of all."""
        return sum(
            each.multiply_adds or 0
            for each in self.ops.products
            if dtype in ("", each.dtype)
        )


def facts_of(model: Any, batch_size: int) -> ModelFacts:
    """Returns what is known of a model.

    Args:
        model: The model.
        batch_size: The examples in a call.
    """
    layers = layers_of(model)
    trace, not_traced = _traced(model, layers, batch_size)
    ops = op_facts(trace) if trace else None
    return ModelFacts(
        model=model,
        layers=layers,
        rows=audited_layers(
            layers, ops, trace.calls if trace else {}, batch_size
        ),
        ops=ops or _NO_OPS,
        trace=trace,
        not_traced=not_traced,
        narrow=SixteenBitLayers.of(model),
        recommendation=recommended_policy(),
        batch_size=batch_size,
    )


def check_is_built(model: Any) -> None:
    """Rejects models without variables."""
    unbuilt = [
        each.path
        for each in layers_of(model)
        if each.path and not getattr(each.layer, "built", True)
    ]
    if not model.built or (unbuilt and not model.weights):
        more = f" and {len(unbuilt) - 5} more" if unbuilt[5:] else ""
        named = f": {', '.join(unbuilt[:5])}{more}" if unbuilt else ""
        raise ValueError(
            "`model` must be built, because layers have their shapes and "
            "variables only then; call it on a batch, or start it with a "
            f"`keras.Input`. Received: {model.name!r}, not built{named}"
        )


def _traced(
    model: Any, layers: Sequence[TappedLayer], batch_size: int
) -> tuple[ModelTrace | None, str]:
    """Returns the trace, and why there is none."""
    try:
        with warnings.catch_warnings():
            # Constants that overflow are found, and said, in another way.
            warnings.simplefilter("ignore")
            return model_trace(model, layers, batch_size), ""
    except Exception as error:  # the code of a user's model
        return None, _in_short(error)


def _in_short(error: Exception) -> str:
    """Returns the end of what is said, without the colors of terminals."""
    text, _, _ = str(error).partition("Arguments received by")
    text = " ".join(re.sub(r"\x1b\[\d*m", "", text).split())
    text = text or type(error).__name__
    return text if len(text) <= 200 else f"...{text[-200:]}"
