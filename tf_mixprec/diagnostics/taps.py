"""Statistics of what layers are given and return, and of the gradients there.

A tap is an identity function with a gradient function of its own. The gradient
that comes back passes on unchanged; what is counted in it is returned as the
"gradient" of a vector of zeros that goes into the tap beside the tensor. So it
comes out of `tape.gradient` like any other, in a graph and under XLA, without
side effects or calls of the host.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics import tensor_statistics
from tf_mixprec.diagnostics.covered_calls import Call
from tf_mixprec.diagnostics.covered_calls import covered_calls
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.diagnostics.trained_part import TrainedPart
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.training import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

INPUT = "input"
OUTPUT = "output"
LOSS_PATH = "(loss)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tap:
    """A tensor that is looked at, while a step is traced.

    Args:
        role: `"input"` or `"output"`.
        order: How many taps were passed before it.
        dtype: Its dtype.
        shape: Its shape, as far as it is known.
        forward: Vector of statistics of its values.
        zeros: What the statistics of its gradient are the gradient of; `None`
            for a tensor that training takes no gradient of.
    """

    role: str
    order: int
    dtype: str
    shape: tuple[int | None, ...]
    forward: Tensor
    zeros: Tensor | None


@dataclasses.dataclass(kw_only=True)
class TappedCall:
    """One call of a layer.

    Args:
        path: Of the layer.
        layer_class: Its class.
        compute_dtype: The dtype it computes in; can be empty.
        occurrence: Which call of this layer, from 0.
        inside: Paths of the layers around it whose calls are looked at, the
            outermost first.
        taps: Its inputs, then its outputs.
    """

    path: str
    layer_class: str
    compute_dtype: str
    occurrence: int
    inside: tuple[str, ...]
    taps: list[Tap] = dataclasses.field(default_factory=list)


class Taps:
    """Puts taps around the calls of layers, while a step is traced.

    Args:
        layers: What is looked at.
        trained: The variables that are trained.
        tape: The tape that the gradients are taken with.
        full: Whether all statistics of outputs are taken, or those in brief.
            Of inputs, which others have returned, they are brief.
        only_outputs: Whether only outputs are looked at.

    Attributes:
        calls: In the order in which they returned: a layer is behind those
            that it is made of. Only a model that is a graph is before them.
    """

    def __init__(
        self,
        layers: Sequence[TappedLayer],
        trained: Sequence[Any],
        tape: Any,
        *,
        full: bool,
        only_outputs: bool = False,
    ):
        self._layers = layers
        self._trained = TrainedPart(trained)
        self._tape = tape
        self._full = full
        self._roles = (OUTPUT,) if only_outputs else (INPUT, OUTPUT)
        self._seen: Counter[str] = Counter()
        self._around: list[str] = []
        self._order = itertools.count()
        self.calls: list[TappedCall] = []

    def on(self) -> AbstractContextManager[None]:
        """Looks at all calls in a block."""
        return covered_calls(self._layers, self._tapped_call)

    def loss_inputs(self, predictions: Any) -> Any:
        """Returns predictions, looked at as what the loss is given."""
        call = TappedCall(
            path=LOSS_PATH,
            layer_class="",
            compute_dtype="",
            occurrence=0,
            inside=(),
        )
        predictions = self._tapped(predictions, call, INPUT)
        self.calls.append(call)
        return predictions

    @property
    def zeros(self) -> list[Tensor]:
        """What gradients must be taken of, in the order of calls and taps."""
        taps = [tap for call in self.calls for tap in call.taps]
        return [tap.zeros for tap in taps if tap.zeros is not None]

    def _tapped_call(
        self, tapped: TappedLayer, call: Call, args: Any, kwargs: Any
    ) -> Any:
        record = self._begin(tapped)
        args, kwargs = self._tapped((args, kwargs), record, INPUT)
        if tapped.passes_on:
            self.calls.append(record)
            return call(*args, **kwargs)
        self._around.append(tapped.path)
        outputs = self._tapped(call(*args, **kwargs), record, OUTPUT)
        self._around.pop()
        self.calls.append(record)
        return outputs

    def _begin(self, tapped: TappedLayer) -> TappedCall:
        occurrence = self._seen[tapped.path]
        self._seen[tapped.path] += 1
        return TappedCall(
            path=tapped.path,
            layer_class=type(tapped.layer).__name__,
            compute_dtype=tapped.compute_dtype,
            occurrence=occurrence,
            inside=tuple(self._around),
        )

    def _tapped(self, structure: Any, record: TappedCall, role: str) -> Any:
        if role not in self._roles:
            return structure
        return tf.nest.map_structure(
            lambda value: self._tapped_value(value, record, role), structure
        )

    def _tapped_value(self, value: Any, record: TappedCall, role: str) -> Any:
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
            return value
        full = self._full and role == OUTPUT
        statistics, length = _STATISTICS[full]
        tapped, zeros = value, None
        if self._trained.has(value):
            zeros = tf.zeros([length], tf.float64)
            self._tape.watch(zeros)
            tapped = _with_gradient(value, zeros, statistics)
            keras_internals.copy_mask(value, tapped)
        record.taps.append(
            Tap(
                role=role,
                order=next(self._order),
                dtype=dtype_name(value),
                shape=tuple(value.shape)
                if value.shape.rank is not None
                else (),
                forward=statistics(value),
                zeros=zeros,
            )
        )
        return tapped


_STATISTICS = {
    False: (
        tensor_statistics.brief_statistics,
        tensor_statistics.BRIEF_LENGTH,
    ),
    True: (tensor_statistics.full_statistics, tensor_statistics.FULL_LENGTH),
}


def _with_gradient(
    value: Tensor, zeros: Tensor, statistics: Callable[[Tensor], Tensor]
) -> Tensor:
    """Returns the value, its gradient's statistics that of the zeros."""

    @tf.custom_gradient
    def identity(value: Tensor, zeros: Tensor) -> Any:
        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            return upstream, statistics(tf.convert_to_tensor(upstream))

        return tf.identity(value), gradient

    return identity(value, zeros)
