"""Functions whose intermediate results are computed again for the gradient.

`tf.recompute_grad` calls the function again, which draws other random numbers
and moves statistics a second time. Here the operations of one trace are built
twice. Those with a state run once, and the second time their results are those
of the first: small ones, such as seeds and statistics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.autocast import custom_gradients
from tf_mixprec.autocast import kernels
from tf_mixprec.autocast import op_lists
from tf_mixprec.autocast import plan as planning
from tf_mixprec.autocast.casts import Frame
from tf_mixprec.autocast.emit import Emitter
from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import Target
from tf_mixprec.autocast.planner import Planner
from tf_mixprec.autocast.trace import Trace

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class CannotRecomputeError(Exception):
    """A function has a state that cannot be kept; the text says which."""


def recomputed(function: Callable[[], Any]) -> Any:
    """Calls a function so that its gradient computes it again.

    Args:
        function: Function without arguments, which is traced once. Variables
            that it reads and does not write get their gradients.

    Returns:
        What it returns, of which tensors are those of the current graph.

    Raises:
        CannotRecomputeError: If it has a state in a loop or in a branch, or
            looks rows up in a variable.
    """
    twice = _BuiltTwice(function)
    values = [outside for _, outside in twice.floats]
    reads = [
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle, dtype in twice.read
    ]

    @tf.custom_gradient
    def forward(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        emitter = twice.built(inputs)

        def gradient(*gradients: Any) -> list[Any]:
            given = {
                index: each
                for index, each in enumerate(gradients)
                if each is not None and each.dtype.is_floating
            }
            first = next(iter(given.values()))
            count = len(twice.floats)
            again = [*_after(inputs[:count], first), *inputs[count:]]
            saved = twice.results_of_state(emitter)
            outputs = twice.outputs(twice.built(again, saved))
            return tf.gradients(
                [outputs[index] for index in given],
                again,
                list(given.values()),
                unconnected_gradients="zero",
            )

        return twice.outputs(emitter), gradient

    outputs = forward(*values, *reads)
    return twice.packed(outputs)


class _BuiltTwice:
    """The operations of a function, to be built twice.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._trace = trace = Trace("recompute", function)
        # No dtype changes: every op stays as it is written.
        self._target = Target(
            tf.bfloat16, op_lists.DEFAULT, kernels.device_kind()
        )
        self._plan = Planner(
            self._target,
            trace.graph,
            [(inside, inside.dtype) for inside, _ in trace.inputs],
            trace.graph.outputs,
            off=True,
            keeps_all=custom_gradients.are_in(trace.graph),
        ).plan()
        uses = list(planning.uses_of_resources(self._plan, trace.outside_of))
        self._written = planning.written(uses)
        self._others = [e for e in trace.inputs if not e[0].dtype.is_floating]
        self.floats = [e for e in trace.inputs if e[0].dtype.is_floating]
        reads = [
            (op, handle)
            for op, handle in uses
            if op.type == "ReadVariableOp" and id(handle) not in self._written
        ]
        self.read = list(
            {
                id(handle): (handle, op.outputs[0].dtype)
                for op, handle in reads
            }.values()
        )
        again = {op for op, _ in reads}
        # Must not run twice.
        self._state = {
            each.op
            for each in self._plan.ops
            if each.op.op_def.is_stateful
            and not each.graphs
            and each.op not in again
        }
        _check(self._plan, uses)

    def built(
        self, inputs: Sequence[Any], saved: dict[int, Any] | None = None
    ) -> Emitter:
        """Builds the operations in the current graph.

        Args:
            inputs: What stands for `floats` and for what `read` holds.
            saved: By ids of traced tensors, the results of operations with a
                state, which are then not built.
        """
        frame = Frame("function", written=self._written)
        count = len(self.floats)
        for (handle, _), value in zip(self.read, inputs[count:], strict=True):
            frame.know_read(handle, value)
        plan = self._plan
        if saved is not None:
            ops = [each for each in plan.ops if each.op not in self._state]
            plan = dataclasses.replace(plan, ops=ops)
        emitter = Emitter(self._target, plan, frame)
        emitter.values.update(saved or {})
        pairs = [
            (inside, value)
            for (inside, _), value in zip(
                self.floats, inputs[:count], strict=True
            )
        ]
        emitter.run([*pairs, *self._others])
        return emitter

    def results_of_state(self, emitter: Emitter) -> dict[int, Any]:
        """Returns what the operations with a state returned."""
        return {
            id(tensor): emitter.value(tensor)
            for op in self._state
            for tensor in op.outputs
        }

    def outputs(self, emitter: Emitter) -> list[tf.Tensor]:
        """Returns what stands for the tensors that the function returns."""
        return [emitter.value(each) for each in self._plan.graph.outputs]

    def packed(self, outputs: Sequence[Any]) -> Any:
        """Returns what the function returns, with other tensors."""
        return self._trace.packed(outputs)


def _check(plan: GraphPlan, uses: Iterable[tuple[Any, Any]]) -> None:
    """Rejects what cannot be computed again."""
    for op, _ in uses:
        if op.type in ("ResourceGather", "ResourceGatherNd"):
            raise CannotRecomputeError(f"{op.name} looks rows up in a variable")
    for each in plan.ops:
        for graph in each.graphs:
            _check_has_no_state(graph)


def _check_has_no_state(plan: GraphPlan) -> None:
    """Rejects states in what is called, which may run any number of times."""
    for each in plan.ops:
        stateful = each.op.op_def.is_stateful and not each.graphs
        if stateful and each.op.type != "ReadVariableOp":
            raise CannotRecomputeError(
                f"{each.op.name} ({each.op.type}) has a state, in a loop, in a "
                "branch or in a function that is called"
            )
        for graph in each.graphs:
            _check_has_no_state(graph)


def _after(inputs: Sequence[Any], gradient: tf.Tensor) -> list[tf.Tensor]:
    """Returns inputs that are there only once a gradient is.

    Else the first results would be kept and used again, as the same. It is the
    way of `tf.recompute_grad`: 0, but not before the gradient is known.
    """
    some = tf.reduce_max(tf.reshape(gradient, [-1])[:1])
    known = tf.cast(some, tf.bool)
    zero = tf.where(tf.equal(known, known), 0.0, float("nan"))
    return [each + tf.cast(zero, each.dtype) for each in inputs]
