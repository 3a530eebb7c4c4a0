"""Which layers lose gradients that there are in float32."""

import functools
from collections import Counter
from collections.abc import Iterator

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.gradient_step import GradientStep
from tf_mixprec.diagnostics.gradient_step import is_finite
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.judgement import FEW
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.records import TensorRecord
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tapped_layers import owners
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.diagnostics.without_randomness import without_randomness

_FLOAT32 = "float32"


class LostGradients:
    """Compares the gradients of a model with those in float32.

    Made anew when layers get other policies.

    Args:
        subject: The model and its loss.
        jit_compile: Whether XLA compiles the steps.
    """

    def __init__(self, subject: Subject, *, jit_compile: bool):
        self._subject = subject
        options = {"jit_compile": jit_compile}
        self._own = GradientStep(subject, None, **options)
        self._wide = GradientStep(subject, _FLOAT32, **options)

    @functools.cached_property
    def _owner_of(self) -> dict[str, str]:
        """By path of a variable that of its innermost layer."""
        model = self._subject.model
        owner_of = owners(tapped_layers(model))
        return {v.path: owner_of[id(v)].path for v in model.trainable_variables}

    def by_layer(self, batch: Batch, scale: float) -> dict[str, float] | None:
        """Returns the share of gradients of weights that is lost, by layer.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: The loss scale.

        Returns:
            The shares by path; `None` if some gradient is inf or nan.
        """
        references: list[Tensor] = self._wide.gradients(batch, 1.0)
        matches = self._own.matches(batch, scale, references)
        if not is_finite(matches):
            return None
        nonzero: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for each in matches:
            layer = self._owner_of[each.variable]
            nonzero[layer] += each.nonzero
            lost[layer] += each.lost
        return {
            layer: lost[layer] / count
            for layer, count in nonzero.items()
            if count >= FEW
        }

    def on_the_way(
        self, batch: Batch, scale: float, threshold: float
    ) -> dict[str, float]:
        """Returns the layers where gradients of outputs are lost.

        A layer that makes them zero, and those behind it, which are given
        zeros.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: The loss scale.
            threshold: The share above which they count as lost.
        """
        model, subject = self._subject.model, self._subject
        options = {"jit_compile": False, "full": False}
        with without_randomness(model):
            own = ProbedStep(subject, **options)(batch, scale)
            with in_precision(model, _FLOAT32):
                wide = ProbedStep(subject, **options)(batch, scale)
        shares: dict[str, float] = {}
        for layer, share in _shares(own, wide):
            if share > threshold:
                shares[layer] = max(share, shares.get(layer, 0.0))
        return shares


def _shares(own: StepRecord, wide: StepRecord) -> Iterator[tuple[str, float]]:
    for call, other in zip(own.calls, wide.calls, strict=True):
        tensors = zip(
            (*call.inputs, *call.outputs),
            (*other.inputs, *other.outputs),
            strict=True,
        )
        for tensor, reference in tensors:
            yield call.path, _lost(tensor, reference)


def _lost(tensor: TensorRecord, reference: TensorRecord) -> float:
    """Returns the share of nonzero gradients that have become zero."""
    own, wide = tensor.gradient, reference.gradient
    if own is None or wide is None or wide.nonzero < FEW:
        return 0.0
    return (own.zero - wide.zero) / wide.nonzero
