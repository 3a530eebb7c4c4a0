"""Builds a traced function again, with its ops in the dtypes of a plan."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.autocast import custom_gradients
from tf_mixprec.autocast import plan as planning
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast import wide_sums
from tf_mixprec.autocast.casts import Frame
from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import OpPlan
from tf_mixprec.autocast.plan import Target
from tf_mixprec.autocast.planner import Planner
from tf_mixprec.autocast.trace import is_of

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# What belongs to the traced graph alone.
_DROPPED = ("_class", "_output_shapes", "_gradient_op_type")


class Emitter:
    """Builds the ops of one planned graph in the current one.

    Args:
        target: The `Target` of the plan.
        plan: The `GraphPlan`.
        frame: The `Frame` of the current graph.
        parent: The `Emitter` of the graph around the planned one.
    """

    def __init__(
        self,
        target: Target,
        plan: GraphPlan,
        frame: Frame,
        parent: Emitter | None = None,
    ) -> None:
        self.target = target
        self.plan = plan
        self.frame = frame
        self.parent = parent
        self.values: dict[int, Any] = {}
        self.ops: dict[tf.Operation, Any] = {}

    def run(self, inputs: Sequence[tuple[tf.Tensor, Any]]) -> list[tf.Tensor]:
        """Builds the ops.

        Args:
            inputs: Pairs of a tensor of the planned graph and what stands for
                it now.

        Returns:
            What stands for the outputs of the planned graph.
        """
        for tensor, value in inputs:
            self.values[id(tensor)] = value
        for each in self.plan.ops:
            if _id_of_first(each.op) not in self.values:
                self._emit(each)
        return [self.value(each) for each in self.plan.graph.outputs]

    def value(self, tensor: Any) -> Any:
        """Returns what stands for a tensor, of this graph or one around it.

        A tensor of another graph stands for itself.
        """
        emitter: Emitter | None = self
        while emitter is not None:
            found = emitter.values.get(id(tensor))
            if found is not None:
                return found
            if is_of(tensor, emitter.plan.graph):
                raise RuntimeError(f"{tensor} is used before it is built")
            emitter = emitter.parent
        return tensor

    def _input(self, tensor: tf.Tensor, dtype: tf.DType) -> Any:
        value = self.value(tensor)
        if dtype not in (tf.float32, self.target.low):
            return value
        return self.frame.get(value, dtype, tensor.name)

    def _emit(self, each: OpPlan) -> None:
        op = each.op
        before = [self.ops[c] for c in op.control_inputs if c in self.ops]
        with _placed(op, before):
            if planning.is_call(op):
                outputs = self._call(each)
            elif op.type in planning.BRANCHES:
                outputs = self._branches(each)
            elif op.type in planning.LOOPS:
                outputs = self._loop(each)
            elif custom_gradients.is_custom(op):
                name = custom_gradients.registered(
                    op,
                    self.value,
                    functools.partial(self._gradient, off=each.off),
                )
                outputs = self._same(each, name)
            elif op.type == "ReadVariableOp":
                outputs = self._read(each)
            else:
                outputs = self._same(each)
        for tensor, value in zip(op.outputs, outputs, strict=True):
            self.values[id(tensor)] = value
            if tf.is_symbolic_tensor(value):
                value.set_shape(tensor.shape)  # Python may know more of it

    def _same(self, each: OpPlan, override: str = "") -> list[tf.Tensor]:
        """Builds an op with the types that the plan gives it.

        Args:
            each: The plan of the op.
            override: Name of its gradient, where that is not its own.
        """
        op = each.op
        if each.is_low:
            override = override or wide_sums.gradient_name(
                op.type, self.target.low
            )
        attributes = {
            name: value
            for name, value in op.node_def.attr.items()
            if name not in _DROPPED
        }
        gradient = op.node_def.attr["_gradient_op_type"]
        if gradient.s and not override:  # of `gradient_override_map`
            attributes["_gradient_op_type"] = gradient
        for key in each.changed:
            if key.place is None:
                attributes[key.name] = tensorflow_internals.type_attribute(
                    self.target.low
                )
        for name in {k.name for k in each.changed if k.place is not None}:
            types = [
                self.target.low
                if planning.TypeKey(name, index) in each.changed
                else tf.as_dtype(number)
                for index, number in enumerate(attributes[name].list.type)
            ]
            attributes[name] = tensorflow_internals.types_attribute(types)
        graph = self.frame.graph
        tensorflow_internals.copy_functions(self.plan.graph, graph, op)
        inputs = [
            self._input(tensor, dtype)
            for tensor, dtype in zip(op.inputs, each.inputs, strict=True)
        ]
        overridden = {op.type: override} if override else {}
        with graph.gradient_override_map(overridden):
            new = graph.create_op(
                op.type, inputs, name=op.name, attrs=attributes
            )
        self.ops[op] = new
        return list(new.outputs)

    def _read(self, each: OpPlan) -> list[tf.Tensor]:
        """Reads a variable; once, unless the function writes it."""
        handle = self.value(each.op.inputs[0])
        if id(handle) in self.frame.written:
            return self._same(each)
        return [self.frame.read(handle, each.op.outputs[0].dtype)]

    def _call(self, each: OpPlan) -> list[tf.Tensor]:
        """Builds the ops of a called function, in place of the call."""
        op = each.op
        values = [self.value(tensor) for tensor in op.inputs]
        (plan,) = each.graphs
        if not op.node_def.attr["_XlaMustCompile"].b:
            return self._nested(plan, values, self.frame)

        def compiled() -> list[tf.Tensor]:
            return self._nested(plan, values, Frame("branch", self.frame))

        function = tf.function(compiled, jit_compile=True, autograph=False)
        return list(function())

    def _nested(
        self, plan: GraphPlan, values: Sequence[Any], frame: Frame
    ) -> list[tf.Tensor]:
        emitter = Emitter(self.target, plan, frame, self)
        return emitter.run(list(zip(plan.graph.inputs, values, strict=True)))

    def _branches(self, each: OpPlan) -> list[tf.Tensor]:
        op = each.op
        values = [self.value(tensor) for tensor in op.inputs[1:]]

        def branch(plan: GraphPlan) -> Callable:
            def build() -> list[tf.Tensor]:
                frame = Frame("branch", self.frame)
                outputs = self._nested(plan, values, frame)
                wanted = [
                    frame.get(value, dtype)
                    for value, dtype in zip(outputs, each.outputs, strict=True)
                ]
                # A branch that returns nothing may have effects.
                return wanted or [tf.constant(0)]

            return build

        functions = [branch(plan) for plan in each.graphs]
        index = self.value(op.inputs[0])
        if op.type in ("If", "StatelessIf"):
            if index.dtype != tf.bool:  # any number is a condition of `If`
                index = tf.cast(index, tf.bool)
            outputs = tf.cond(index, *functions, name=op.name)
        else:
            outputs = tf.switch_case(index, functions, name=op.name)
        outputs = tf.nest.flatten(outputs)
        return outputs[: len(op.outputs)]

    def _loop(self, each: OpPlan) -> list[tf.Tensor]:
        op = each.op
        condition, body = each.graphs
        same = planning.invariants(body.graph)
        values = [
            self.value(tensor) if invariant else self._input(tensor, dtype)
            for tensor, dtype, invariant in zip(
                op.inputs, each.inputs, same, strict=True
            )
        ]
        carried = [i for i, invariant in enumerate(same) if not invariant]

        def build(plan: GraphPlan, turn: Sequence[Any]) -> list[tf.Tensor]:
            frame = Frame("loop", self.frame)
            inputs = list(values)
            for index, value in zip(carried, turn, strict=True):
                inputs[index] = value
            outputs = self._nested(plan, inputs, frame)
            if plan is condition:
                return outputs
            return [
                frame.get(outputs[i], op.inputs[i].dtype)
                if op.inputs[i].dtype == tf.float32
                else outputs[i]
                for i in carried
            ]

        results = tf.while_loop(
            lambda *turn: build(condition, turn)[0],
            lambda *turn: build(body, turn),
            [values[i] for i in carried],
            shape_invariants=[body.graph.inputs[i].shape for i in carried],
            parallel_iterations=op.get_attr("parallel_iterations"),
            maximum_iterations=self._limit(op, condition.graph),
            name=op.name,
        )
        outputs = list(values)
        for index, value in zip(carried, results, strict=True):
            outputs[index] = value
        return outputs

    def _limit(self, op: tf.Operation, condition: Any) -> Any:
        """Returns the largest number of turns of a loop; `None` for none.

        `tf.while_loop` keeps it in the second place, whether there is one or
        not, and where there is one asks for it in the condition.
        """
        if _compares(condition, 0, 1):
            return self.value(op.inputs[1])
        if not _compares(condition, 0, 2):
            return None
        # The gradient of a loop: it makes as many turns as that did, and has
        # its limit for XLA, -1 for none.
        given = self.value(op.inputs[1])
        known = tf.get_static_value(given)
        if known is not None:
            return None if known < 0 else known
        return tf.where(given < 0, given.dtype.max, given)

    def _gradient(
        self, graph: Any, inputs: list[tuple[Any, Any]], *, off: bool
    ) -> list[tf.Tensor]:
        """Builds what a function of `tf.custom_gradient` traced."""
        plan = Planner(
            self.target,
            graph,
            [(inside, value.dtype) for inside, value in inputs],
            graph.outputs,
            off=off,
            keeps_all=True,
        ).plan()
        return Emitter(self.target, plan, Frame("function"), self).run(inputs)


def _compares(condition: Any, turn: int, limit: int) -> bool:
    """Returns whether a loop's condition asks if one input is below another."""
    inputs = condition.inputs
    return len(inputs) > limit and any(
        user.type == "Less"
        and user.inputs[0] is inputs[turn]
        and user.inputs[1] is inputs[limit]
        for user in inputs[turn].consumers()
    )


def _id_of_first(op: tf.Operation) -> int | None:
    """Returns the id of the first output of an op."""
    return id(op.outputs[0]) if op.outputs else None


@contextlib.contextmanager
def _placed(op: tf.Operation, before: list[tf.Operation]) -> Iterator[None]:
    """Builds on the device of an op, and after others."""
    with contextlib.ExitStack() as stack:
        if op.device:
            stack.enter_context(tf.device(op.device))
        if before:
            stack.enter_context(tf.control_dependencies(before))
        yield
