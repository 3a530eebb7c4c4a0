"""How much each layer would change the loss if it alone were in 16 bits.

A pass in float32 that calls each layer once more, in 16 bits, with what it was
given. The difference of the two outputs times the gradient of the loss is, to
first order, what the layer changes in the loss. It has all that 16 bits do in
the layer: to its inputs, weights, sums and outputs.
"""

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.collected import Collected
from tf_mixprec.diagnostics.covered_calls import Call
from tf_mixprec.diagnostics.covered_calls import covered_calls
from tf_mixprec.diagnostics.covered_calls import same_value
from tf_mixprec.diagnostics.data import size_of
from tf_mixprec.diagnostics.in_precision import decided
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.diagnostics.tensor_statistics import full_statistics
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.tune.casts import LayerGraph
from tf_mixprec.diagnostics.tune.units import Unit
from tf_mixprec.diagnostics.untouched import state_of
from tf_mixprec.diagnostics.untouched import untouched
from tf_mixprec.numerics.finite import found_inf
from tf_mixprec.training import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What one layer in 16 bits, and all others in float32, would do.

    Args:
        changes: Float64 vector: by example, how much its loss changes, to first
            order.
        is_finite: Whether the layer returns no inf or nan where it returns
            numbers in float32.
        outputs: Statistics of what it returns in float32, for each output of
            each call.
    """

    changes: np.ndarray
    is_finite: bool
    outputs: tuple[TensorStatistics, ...]

    @property
    def size(self) -> float:
        """The root mean square of the changes; inf where not finite.

        Of single examples, since their changes can cancel in the mean of a few.
        """
        if not self.is_finite:
            return math.inf
        return math.sqrt(float(np.mean(self.changes**2)))

    @property
    def change(self) -> float:
        """The change of the mean loss; inf where not finite."""
        return float(np.mean(self.changes)) if self.is_finite else math.inf


@dataclasses.dataclass(kw_only=True)
class _Call:
    """One output of one call of a unit, as traced."""

    unit: int
    output: Tensor
    change: Tensor
    is_bad: Tensor


class ScoringPass:
    """The pass that scores all units of a model.

    Args:
        subject: The model and its loss.
        units: What is scored.
        jit_compile: Whether XLA compiles it.

    Attributes:
        graph: How the layers are connected, once a pass was made.
        loss: The loss of the batch in float32, once a pass was made.
    """

    def __init__(
        self, subject: Subject, units: Sequence[Unit], *, jit_compile: bool
    ):
        self._subject = subject
        self._units = units
        self._number = {id(u.layer): n for n, u in enumerate(units)}
        self._layers = tapped_layers(subject.model)
        self._function = traced(self._traced, jit_compile=jit_compile)
        self._collected = Collected()
        self._owners: list[int] = []
        self.graph = LayerGraph()
        self.loss = 0.0

    def __call__(self, batch: Batch) -> list[Score]:
        """Returns the score of each unit.

        Args:
            batch: `(x, y, sample_weight)`.
        """
        model = self._subject.model
        self._subject.build(batch)
        with (
            untouched(state_of(model)),
            in_precision(model, "float32"),
            np.errstate(over="ignore"),  # constants of layers, in 16 bits
        ):
            packed, changes, is_bad, loss = (
                each.numpy() for each in self._function(batch)
            )
        self.loss = float(loss)
        outputs: list[list[TensorStatistics]] = [[] for _ in self._units]
        for owner, each in zip(
            self._owners, self._collected.unpacked(packed), strict=True
        ):
            outputs[owner].append(each)
        return [
            Score(
                changes=changes[number],
                is_finite=not is_bad[number],
                outputs=tuple(outputs[number]),
            )
            for number in range(len(self._units))
        ]

    def _traced(self, batch: Batch) -> tuple[Tensor, ...]:
        self._calls: list[_Call] = []
        self._collected, self._owners = Collected(), []
        self._is_shadow = False
        self.graph = LayerGraph()
        with (
            tf.GradientTape() as self._tape,
            covered_calls(self._layers, self._scored_call),
        ):
            loss = self._subject.loss(batch, None, training=False)
        gradients = self._tape.gradient(
            loss, [each.output for each in self._calls]
        )
        size = size_of(batch)
        changes = [tf.zeros([size], tf.float64)] * len(self._units)
        is_bad = [tf.constant(False)] * len(self._units)
        for call, gradient in zip(self._calls, gradients, strict=True):
            is_bad[call.unit] |= call.is_bad
            if gradient is not None:
                product = tf.cast(gradient, tf.float64) * call.change
                changes[call.unit] += _by_example(product, size)
        self._calls = []
        self.graph.end()
        packed = self._collected.packed()
        if not self._units:
            return packed, tf.zeros([0, 0]), tf.zeros([0]), loss
        return packed, tf.stack(changes), tf.stack(is_bad), loss

    def _scored_call(
        self, tapped: TappedLayer, call: Call, args: Any, kwargs: Any
    ) -> Any:
        outputs = call(*args, **kwargs)
        if self._is_shadow or tapped.passes_on:
            return outputs
        outputs = tf.nest.map_structure(self._of_its_own, outputs)
        number = self._number.get(id(tapped.layer))
        if number is not None:
            self._score(number, args, kwargs, outputs)
        self.graph.add(tapped.layer, (args, kwargs), outputs)
        return outputs

    def _of_its_own(self, value: Any) -> Any:
        """Returns a tensor as one that the loss depends on by this name."""
        if not isinstance(value, tf.Tensor):
            return value
        own = same_value(value)
        if value.dtype.is_floating:
            self._tape.watch(own)
        return own

    def _score(self, number: int, args: Any, kwargs: Any, outputs: Any) -> None:
        unit = self._units[number]
        with self._tape.stop_recording(), self._narrow(unit):
            narrow = unit.layer(*args, **kwargs)
            for own, other in zip(
                _floats(outputs), _floats(narrow), strict=True
            ):
                change = tf.cast(other, tf.float64) - tf.cast(own, tf.float64)
                bad = ~tf.math.is_finite(change)
                self._owners.append(number)
                self._calls.append(
                    _Call(
                        unit=number,
                        output=own,
                        change=tf.where(bad, tf.zeros_like(change), change),
                        is_bad=found_inf([other]) & ~found_inf([own]),
                    )
                )
                self._collected.add(full_statistics(own))

    @contextmanager
    def _narrow(self, unit: Unit) -> Iterator[None]:
        """Puts a unit in 16 bits; the model keeps the losses it has."""
        losses = keras_internals.take_losses(unit.layer)
        self._is_shadow = True
        try:
            with decided(unit.layer, unit.narrowed()):
                yield
        finally:
            self._is_shadow = False
            keras_internals.take_losses(unit.layer)
            for loss in losses:
                unit.layer.add_loss(loss)


def _floats(structure: Any) -> list[Tensor]:
    return [
        each
        for each in tf.nest.flatten(structure)
        if isinstance(each, tf.Tensor) and each.dtype.is_floating
    ]


def _by_example(values: Tensor, size: int) -> Tensor:
    """Returns sums by example, for a loss that is a mean over examples.

    Args:
        values: Float64 tensor; where its first axis is not the examples, all of
            them get the same.
        size: How many examples.
    """
    if values.shape.rank and values.shape[0] == size:
        return tf.reduce_sum(tf.reshape(values, [size, -1]), axis=1) * size
    return tf.fill([size], tf.reduce_sum(values))
