"""One trace of a model, and which layer made each of its operations.

Nothing is computed: the model is called on symbols, in training, and what is
not needed for its outputs and losses does not count.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec.autocast import plan
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast.trace import is_of
from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.policies import kinds
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import cover_method

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class TracedOp(NamedTuple):
    """An operation of the trace.

    Args:
        op: The `tf.Operation`.
        path: Of the layer that made it; empty for the model itself.
        times: How often it runs in a call; `None` in a loop of a length that
            is not known.
    """

    op: Any
    path: str
    times: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTrace:
    """What a call of a model does.

    Args:
        ops: The operations that its outputs and losses need.
        owners: By the ids of operations, the path of the layer.
        calls: By path, how often each layer is called.
        output_dtypes: Of what the model returns.
        loss_dtypes: Of the losses that layers add.
        batch_size: The examples it was called on.
    """

    ops: tuple[TracedOp, ...]
    owners: dict[int, str]
    calls: dict[str, int]
    output_dtypes: tuple[str, ...]
    loss_dtypes: tuple[str, ...]
    batch_size: int


def model_trace(
    model: Any, layers: Sequence[TappedLayer], batch_size: int
) -> ModelTrace:
    """Returns what a call of a model does.

    Args:
        model: A model that is built.
        layers: What operations are to be assigned to.
        batch_size: The size of dimensions that are of the batch.

    Raises:
        ValueError: If the shapes of its inputs are not known.
    """
    specs = _specs(model, batch_size)
    recorder = _Recorder(layers)

    def call(inputs: Any) -> Any:
        outputs = keras_internals.predictions(model, inputs, training=True)
        losses = [keras.ops.convert_to_tensor(each) for each in model.losses]
        return outputs, losses

    try:
        with recorder.on():
            function = tf.function(call, autograph=False)
            concrete = function.get_concrete_function(specs)
    finally:
        keras_internals.take_losses(model)  # they are symbols
    outputs, losses = concrete.structured_outputs
    return ModelTrace(
        ops=tuple(_live_ops(concrete.graph, recorder, "", 1)),
        owners=recorder.owners,
        calls=recorder.calls,
        output_dtypes=_dtypes(outputs),
        loss_dtypes=_dtypes(losses),
        batch_size=batch_size,
    )


def _dtypes(structure: Any) -> tuple[str, ...]:
    return tuple(
        dtype_name(each)
        for each in tf.nest.flatten(structure)
        if hasattr(each, "dtype")
    )


def _specs(model: Any, batch_size: int) -> Any:
    """Returns what the model is called on."""
    if isinstance(model, keras.Sequential):
        return _spec(model.inputs[0], batch_size)
    if has_graph(model):
        return keras.tree.map_structure(
            lambda tensor: _spec(tensor, batch_size), model.input
        )
    shapes = (model.get_build_config() or {}).get("input_shape")
    if shapes is None:
        raise ValueError(
            "The shapes of the inputs must be known, because the model is "
            "called on symbols; call it on a batch. Received: "
            f"model={model!r}"
        )
    return _specs_of_shapes(shapes, batch_size)


def _spec(tensor: Any, batch_size: int) -> Any:
    size, *others = tensor.shape
    return tf.TensorSpec([size or batch_size, *others], tensor.dtype)


def _specs_of_shapes(shapes: Any, batch_size: int) -> Any:
    """Returns specs in the structure of shapes: a list of numbers is one."""
    if isinstance(shapes, dict):
        return {
            name: _specs_of_shapes(each, batch_size)
            for name, each in shapes.items()
        }
    if all(each is None or isinstance(each, int) for each in shapes):
        return tf.TensorSpec([batch_size, *shapes[1:]], keras.config.floatx())
    return type(shapes)(_specs_of_shapes(each, batch_size) for each in shapes)


class _Recorder:
    """Notes, while a model is called, which layer makes which operations.

    Args:
        layers: What operations are assigned to, the innermost that is called.
    """

    def __init__(self, layers: Sequence[TappedLayer]):
        self._layers = layers
        self._around = [""]
        self._settled: dict[int, int] = {}
        self.owners: dict[int, str] = {}
        self.calls: dict[str, int] = {}
        self.turns: dict[str, int | None] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Notes in a block."""
        with contextlib.ExitStack() as stack:
            for each in self._layers:
                cover = functools.partial(self._covered, each)
                stack.callback(cover_method(each.layer, "call", cover))
            yield
            self._settle()

    def _covered(
        self, tapped: TappedLayer, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        if not kinds.is_keras_own(tapped.layer):
            # `if` and `for` over tensors in code of users
            call = tensorflow_internals.converted(call)

        @functools.wraps(call)
        def noted_call(*args: Any, **kwargs: Any) -> Any:
            self._settle()
            self._begin(tapped, (args, kwargs))
            try:
                return call(*args, **kwargs)
            finally:
                self._settle()
                self._around.pop()

        return noted_call

    def _begin(self, tapped: TappedLayer, inputs: Any) -> None:
        path = tapped.path
        self.calls[path] = self.calls.get(path, 0) + 1
        tensors = [
            each
            for each in tf.nest.flatten(inputs)
            if is_of(each, tf.compat.v1.get_default_graph())
        ]
        for tensor in tensors:
            # Keras casts what goes into a layer before it calls it.
            if tensor.op.type == "Cast" and (
                self.owners.get(id(tensor.op)) == self._around[-1]
            ):
                self.owners[id(tensor.op)] = path
        if isinstance(tapped.layer, _LOOPS) and tensors:
            shape = tensors[0].shape
            self.turns[path] = shape[1] if (shape.rank or 0) > 1 else None
        self._around.append(path)

    def _settle(self) -> None:
        """Assigns what is new in the graph to the layer that is called."""
        graph = tf.compat.v1.get_default_graph()
        operations = graph.get_operations()
        for op in operations[self._settled.get(id(graph), 0) :]:
            self.owners.setdefault(id(op), self._around[-1])
        self._settled[id(graph)] = len(operations)


_LOOPS = (keras.layers.RNN, keras.layers.Bidirectional)


def _live_ops(
    graph: Any, recorder: _Recorder, path: str, times: int | None
) -> Iterator[TracedOp]:
    """Yields the operations that the outputs of a graph need.

    Args:
        graph: The `FuncGraph`.
        recorder: Knows who made them.
        path: Of the layer that made those that are not known.
        times: How often the graph runs in a call of the model.
    """
    waiting = [tensor.op for tensor in graph.outputs]
    seen: set[int] = set()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        owner = recorder.owners.setdefault(id(op), path)
        yield TracedOp(op, owner, times)
        waiting += [tensor.op for tensor in op.inputs]
        for name in plan.function_names(op):
            inner = tensorflow_internals.function_graph(graph, name, op)
            turns = _times(op, recorder.turns.get(owner), times)
            yield from _live_ops(inner, recorder, owner, turns)


def _times(op: Any, turns: int | None, times: int | None) -> int | None:
    """Returns how often what an operation calls runs."""
    if op.type not in plan.LOOPS:
        return times
    if turns is None or times is None:
        return None
    return turns * times
