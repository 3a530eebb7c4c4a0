"""A training step that counts everywhere and changes nothing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.collected import Collected
from tf_mixprec.diagnostics.records import CallRecord
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.records import TensorRecord
from tf_mixprec.diagnostics.records import VariableRecord
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.diagnostics.tapped_layers import owners
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.diagnostics.taps import INPUT
from tf_mixprec.diagnostics.taps import OUTPUT
from tf_mixprec.diagnostics.taps import Tap
from tf_mixprec.diagnostics.taps import TappedCall
from tf_mixprec.diagnostics.taps import Taps
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.diagnostics.tensor_statistics import brief_statistics
from tf_mixprec.diagnostics.tensor_statistics import full_statistics
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.untouched import random_states
from tf_mixprec.diagnostics.untouched import state_of
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.optimizers import gradients as gradient_lists

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

Numbers = tuple[int | None, int | None]  # of values and of their gradient


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where the statistics of a trace are in what it returns."""

    calls: list[tuple[TappedCall, list[tuple[Tap, Numbers]]]]
    variables: list[tuple[Any, Numbers]]
    collected: Collected


class ProbedStep:
    """Forward and backward pass of a model, with statistics of all tensors.

    Traced at the first call and for each new shape. What it returns is in one
    tensor, so that it travels to the host at once.

    Args:
        subject: The model and its loss.
        jit_compile: Whether XLA compiles it.
        full: Whether all statistics are taken, or those in brief.
        only_outputs: Whether only what layers return is looked at, and its
            gradients: for less time.
        training: Whether the layers train.

    Attributes:
        draws: By how much a step moves the random states; `None` before one
            was made.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        jit_compile: bool,
        full: bool = True,
        only_outputs: bool = False,
        training: bool = True,
    ):
        self._subject = subject
        self._full = full
        self._only_outputs = only_outputs
        self._training = training
        self._layers: list[TappedLayer] = []
        self._layout: _Layout | None = None
        self.draws: list[Any] | None = None
        self._function = traced(self._traced, jit_compile=jit_compile)

    def __call__(self, batch: Batch, scale: float = 1.0) -> StepRecord:
        """Makes the step, on the model as it is now.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: What the loss is multiplied with.
        """
        self._subject.build(batch)
        if not self._layers:
            self._layers = tapped_layers(self._subject.model)
        packed, losses, draws = self._function(
            batch, tf.constant(scale, tf.float32)
        )
        if self.draws is None:  # the same in every step
            self.draws = [each.numpy() for each in draws]
        loss, scaled_loss = (float(each) for each in losses.numpy())
        if self._layout is None:
            raise RuntimeError("A step must be traced before it is recorded.")
        return self._record(
            self._layout,
            packed.numpy(),
            loss=loss,
            loss_scale=scale,
            scaled_loss=scaled_loss,
        )

    @property
    def random_states(self) -> list[Any]:
        """The states of the random generators of the model."""
        return random_states(self._subject.model)

    def _traced(
        self, batch: Batch, scale: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        # Here and not by `untouched`: as a part of the step it costs nothing.
        state = [(v, tf.identity(v)) for v in state_of(self._subject.model)]
        before = [tf.identity(each) for each in self.random_states]
        packed, losses = self._probed(batch, scale)
        draws = [
            tf.convert_to_tensor(each) - value
            for each, value in zip(self.random_states, before, strict=True)
        ]
        for variable, value in state:
            variable.assign(value)
        return packed, losses, draws

    def _probed(self, batch: Batch, scale: Tensor) -> tuple[Tensor, Tensor]:
        trained = self._subject.model.trainable_variables
        collected = Collected()
        # Before the forward pass, which moves statistics.
        values = [
            (each, collected.add(self._statistics(tf.convert_to_tensor(each))))
            for each in self._variables_looked_at()
        ]
        with tf.GradientTape() as tape:
            taps = Taps(
                self._layers,
                trained,
                tape,
                full=self._full,
                only_outputs=self._only_outputs,
            )
            with taps.on():
                loss = self._subject.loss(batch, taps, training=self._training)
            scaled = loss * tf.cast(scale, loss.dtype)
        weights = [] if self._only_outputs else trained
        gradients = tape.gradient(scaled, [*weights, *taps.zeros])
        of_variables = dict(
            zip(map(id, weights), gradients[: len(weights)], strict=True)
        )
        variables = [
            (
                each,
                (
                    number,
                    self._of_gradient(of_variables.get(id(each)), collected),
                ),
            )
            for each, number in values
        ]
        calls = _calls(taps, gradients[len(weights) :], collected)
        self._layout = _Layout(calls, variables, collected)
        return collected.packed(), tf.stack([loss, scaled])

    def _variables_looked_at(self) -> list[Any]:
        if self._only_outputs:
            return []
        variables = self._subject.model.variables
        return [v for v in variables if tf.as_dtype(v.dtype).is_floating]

    def _of_gradient(
        self, gradient: Gradient, collected: Collected
    ) -> int | None:
        if gradient is None:
            return None
        values = gradient_lists.row_values(gradient)
        return collected.add(self._statistics(values))

    def _statistics(self, tensor: Tensor) -> Tensor:
        statistics = full_statistics if self._full else brief_statistics
        return statistics(tensor)

    def _record(
        self, layout: _Layout, packed: Any, **losses: float
    ) -> StepRecord:
        found = layout.collected.unpacked(packed)

        def at(number: int | None) -> TensorStatistics | None:
            return None if number is None else found[number]

        return StepRecord(
            calls=tuple(_call(each, taps, at) for each, taps in layout.calls),
            variables=tuple(self._variables(layout, at)),
            **losses,
        )

    def _variables(self, layout: _Layout, at: Callable[..., Any]) -> Any:
        owner_of = owners(self._layers)
        for variable, (values, gradient) in layout.variables:
            yield VariableRecord(
                path=variable.path,
                layer=owner_of[id(variable)].path,
                name=variable.name,
                dtype=dtype_name(variable),
                trainable=variable.trainable,
                values=at(values),
                gradient=at(gradient),
            )


def _calls(
    taps: Taps, gradients: list[Tensor | None], collected: Collected
) -> list[tuple[TappedCall, list[tuple[Tap, Numbers]]]]:
    left = iter(gradients)

    def numbers(tap: Tap) -> Numbers:
        gradient = None if tap.zeros is None else next(left)
        return collected.add(tap.forward), collected.add(gradient)

    return [
        (call, [(tap, numbers(tap)) for tap in call.taps])
        for call in taps.calls
    ]


def _call(
    call: TappedCall,
    taps: list[tuple[Tap, Numbers]],
    at: Callable[..., Any],
) -> CallRecord:
    def tensors(role: str) -> tuple[TensorRecord, ...]:
        return tuple(
            TensorRecord(
                order=tap.order,
                dtype=tap.dtype,
                shape=tap.shape,
                values=at(values),
                gradient=at(gradient),
            )
            for tap, (values, gradient) in taps
            if tap.role == role
        )

    return CallRecord(
        path=call.path,
        layer_class=call.layer_class,
        compute_dtype=call.compute_dtype,
        occurrence=call.occurrence,
        inside=call.inside,
        inputs=tensors(INPUT),
        outputs=tensors(OUTPUT),
    )
