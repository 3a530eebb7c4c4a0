"""One step of a model in two precisions, compared tensor by tensor.

Both passes are in one graph, so that no tensor has to leave the device.
"""

import dataclasses
import functools
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.covered_calls import Call
from tf_mixprec.diagnostics.covered_calls import covered_calls
from tf_mixprec.diagnostics.covered_calls import same_value
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.diagnostics.tapped_layers import owners
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.diagnostics.tensor_pairs import PairStatistics
from tf_mixprec.diagnostics.tensor_pairs import decoded_pair
from tf_mixprec.diagnostics.tensor_pairs import pair_statistics
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.trained_part import TrainedPart
from tf_mixprec.diagnostics.untouched import state_of
from tf_mixprec.diagnostics.untouched import untouched
from tf_mixprec.diagnostics.without_randomness import without_randomness
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import has_16_bits

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

OUTPUT = "output"
GRADIENT = "gradient of the output"
WEIGHT_GRADIENT = "gradient of the weight"
_FLOAT32 = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedTensor:
    """How far a tensor is from what it is in float32.

    Args:
        role: `"output"`, `"gradient of the output"` or `"gradient of the
            weight"`.
        layer: The path of the layer.
        layer_class: The name of its class.
        name: The layer, and which output or weight of it.
        dtype: The dtype that it has, or that its layer computes in.
        difference: How far.
    """

    role: str
    layer: str
    layer_class: str
    name: str
    dtype: str
    difference: PairStatistics


@dataclasses.dataclass(frozen=True)
class _Made:
    """What a pass has made, while it is traced."""

    loss: Tensor
    outputs: list[tuple[dict[str, str], Tensor]]
    output_gradients: list[Tensor | None]
    weight_gradients: list[Gradient]


class ComparisonStep:
    """Makes a step in a precision and in float32, and compares.

    Args:
        subject: The model and its loss.
        policy: As for `in_precision`: the precision; `None` for that of the
            model.
        jit_compile: Whether XLA compiles it.
    """

    def __init__(self, subject: Subject, policy: Any, *, jit_compile: bool):
        self._subject = subject
        self._policy = policy
        self._facts: list[dict[str, str]] = []
        self._function = traced(self._traced, jit_compile=jit_compile)

    def __call__(
        self, batch: Batch, scale: float
    ) -> tuple[float, float, tuple[ComparedTensor, ...]]:
        """Returns the loss, the loss in float32, and the tensors compared.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: The loss scale of both; gradients are unscaled.
        """
        self._subject.build(batch)
        model = self._subject.model
        with untouched(state_of(model)), without_randomness(model):
            losses, rows = self._function(batch, tf.constant(scale, tf.float32))
        loss, wide_loss = (float(each) for each in losses.numpy())
        tensors = tuple(
            ComparedTensor(**facts, difference=decoded_pair(row))
            for facts, row in zip(self._facts, rows.numpy(), strict=True)
        )
        return loss, wide_loss, tensors

    def _traced(self, batch: Batch, scale: Tensor) -> tuple[Tensor, Tensor]:
        own = self._pass(batch, scale, self._policy)
        wide = self._pass(batch, scale, _FLOAT32)
        facts: list[dict[str, str]] = []
        rows: list[Tensor] = []

        def compare(values: Any, reference: Any, **of: str) -> None:
            if values is None or reference is None:
                return
            facts.append(of)
            rows.append(pair_statistics(values, reference, _ulps_of(own)))

        for index, (of, output) in enumerate(own.outputs):
            compare(output, wide.outputs[index][1], role=OUTPUT, **of)
            compare(
                _unscaled(own.output_gradients[index], scale),
                _unscaled(wide.output_gradients[index], scale),
                role=GRADIENT,
                **of,
            )
        for of, gradient, reference in zip(
            self._of_weights(),
            own.weight_gradients,
            wide.weight_gradients,
            strict=True,
        ):
            compare(
                _unscaled(gradient, scale),
                _unscaled(reference, scale),
                role=WEIGHT_GRADIENT,
                **of,
            )
        self._facts = facts
        return tf.stack([own.loss, wide.loss]), tf.stack(rows)

    def _pass(self, batch: Batch, scale: Tensor, policy: Any) -> _Made:
        model = self._subject.model
        variables = model.trainable_variables
        with in_precision(model, policy), tf.GradientTape() as tape:
            with _outputs_kept(tapped_layers(model)) as outputs:
                loss = self._subject.loss(batch, None, training=True)
            scaled = loss * tf.cast(scale, loss.dtype)
        trained = TrainedPart(variables)
        tensors = [tensor for _, tensor in outputs if trained.has(tensor)]
        gradients = tape.gradient(scaled, [*tensors, *variables])
        of_outputs = iter(gradients[: len(tensors)])
        return _Made(
            loss,
            outputs,
            [
                next(of_outputs) if trained.has(tensor) else None
                for _, tensor in outputs
            ],
            gradients[len(tensors) :],
        )

    def _of_weights(self) -> Iterator[dict[str, str]]:
        owner_of = owners(tapped_layers(self._subject.model))
        with in_precision(self._subject.model, self._policy):
            for variable in self._subject.model.trainable_variables:
                owner = owner_of[id(variable)]
                yield {
                    "layer": owner.path,
                    "layer_class": type(owner.layer).__name__,
                    "name": f"{owner.path}/{variable.name}".lstrip("/"),
                    "dtype": owner.compute_dtype,
                }


def _ulps_of(made: _Made) -> str:
    """Returns the dtype whose ulps count: the first of 16 bits."""
    dtypes = [of["dtype"] for of, _ in made.outputs]
    return next((each for each in dtypes if has_16_bits(each)), _FLOAT32)


@contextmanager
def _outputs_kept(
    layers: Sequence[TappedLayer],
) -> Iterator[list[tuple[dict[str, str], Tensor]]]:
    """Gives a list of what layers return, filled while they are called."""
    outputs: list[tuple[dict[str, str], Tensor]] = []

    def keep(tapped: TappedLayer, value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
            return value
        kept = same_value(value)
        of = {
            "layer": tapped.path,
            "layer_class": type(tapped.layer).__name__,
            "name": tapped.path or "(model)",
            "dtype": dtype_name(value),
        }
        outputs.append((of, kept))
        return kept

    def kept_call(
        tapped: TappedLayer, call: Call, args: Any, kwargs: Any
    ) -> Any:
        results = call(*args, **kwargs)
        if tapped.passes_on:
            return results
        return tf.nest.map_structure(functools.partial(keep, tapped), results)

    with covered_calls(layers, kept_call):
        yield outputs


def _unscaled(gradient: Gradient, scale: Tensor) -> Tensor | None:
    if gradient is None:
        return None
    return tf.cast(tf.convert_to_tensor(gradient), tf.float32) / scale
