"""Decides what becomes of each op of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.autocast import kernels
from tf_mixprec.autocast import op_lists
from tf_mixprec.autocast import parameters
from tf_mixprec.autocast import regions
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast.broadcasting import broadcasts
from tf_mixprec.autocast.op_order import in_order
from tf_mixprec.autocast.op_order import needed_ops
from tf_mixprec.autocast.plan import AS_WRITTEN
from tf_mixprec.autocast.plan import BRANCHES
from tf_mixprec.autocast.plan import CONTROL_FLOW
from tf_mixprec.autocast.plan import LOOPS
from tf_mixprec.autocast.plan import OLD_CONTROL_FLOW
from tf_mixprec.autocast.plan import SOURCE
from tf_mixprec.autocast.plan import UNKNOWN
from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import OpPlan
from tf_mixprec.autocast.plan import Target
from tf_mixprec.autocast.plan import function_names
from tf_mixprec.autocast.plan import invariants
from tf_mixprec.autocast.plan import is_call
from tf_mixprec.autocast.signature import Signature
from tf_mixprec.autocast.signature import TypeKey
from tf_mixprec.autocast.signature import signature_of

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# Neutral ops that give as many values as they take: rounding before them is
# rounding after them, to the bit, and moves half of the bytes.
_KEEP_SIZE = frozenset(
    ("Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Relu")
)


@dataclasses.dataclass
class _Value:
    """What is known of a tensor: its new dtype, and if it is a parameter."""

    dtype: tf.DType
    parameter: bool = False


class Planner:
    """Decides about the ops of one graph.

    Args:
        target: The `Target`.
        graph: The `FuncGraph`.
        inputs: The new dtypes of the graph's inputs.
        outputs: The tensors of the graph that are wanted of it.
        is_parameter: Whether each input is a parameter.
        off: Whether every op stays as it is written.
        keeps_all: Whether ops without effect are planned too: the gradient
            functions of `tf.custom_gradient` use tensors that nothing else
            does.
    """

    def __init__(
        self,
        target: Target,
        graph: Any,
        inputs: Sequence[tuple[tf.Tensor, tf.DType]],
        outputs: Iterable[tf.Tensor],
        is_parameter: Sequence[bool] = (),
        off: bool = False,
        keeps_all: bool = False,
    ) -> None:
        self.target = target
        self.keeps_all = keeps_all
        self.graph = graph
        self.off = off
        self.outputs = list(outputs)
        self.values: dict[int, _Value] = {}
        flags = list(is_parameter) or [False] * len(inputs)
        for (tensor, dtype), flag in zip(inputs, flags, strict=True):
            self.values[id(tensor)] = _Value(dtype, flag)
        self.signatures: dict[tf.Operation, Signature] = {}
        self.rounded_first = frozenset[str]()

    def plan(self) -> GraphPlan:
        """Returns the plans of all ops that have an effect."""
        all_ops = self.graph.get_operations()
        written = set(all_ops) if self.off else regions.marked_ops(self.graph)
        if not self.keeps_all:
            all_ops = needed_ops(all_ops, self.outputs)
        pairs = [(op, op in written) for op in in_order(all_ops)]
        self.signatures = {op: signature_of(op) for op, _ in pairs}
        self.rounded_first = self._rounded_first(pairs)
        plans = []
        for op, off in pairs:
            plan = self._plan_op(op, off)
            plan.off = off
            plans.append(plan)
            parameter = parameters.makes_parameters(
                op, self.target.low, lambda t: self._value(t).parameter
            )
            for tensor, dtype in zip(op.outputs, plan.outputs, strict=True):
                known = self.values.get(id(tensor))
                if known is None:  # not an input of the graph
                    self.values[id(tensor)] = _Value(dtype, parameter)
        return GraphPlan(
            self.graph,
            plans,
            tuple(self._value(each).dtype for each in self.outputs),
            {key: value.dtype for key, value in self.values.items()},
        )

    def _value(self, tensor: tf.Tensor) -> _Value:
        return self.values.get(id(tensor)) or _Value(tensor.dtype)

    def _plan_op(self, op: tf.Operation, off: bool) -> OpPlan:
        if op.type in OLD_CONTROL_FLOW:
            raise NotImplementedError(
                "`mp.autocast` must meet TensorFlow 2's control flow, because "
                "it rewrites the functions of `If` and `While`; do not call "
                "`tf.compat.v1.disable_control_flow_v2`. Received: "
                f"op={op.name!r} of type {op.type!r}"
            )
        if is_call(op):
            return self._plan_call(op, off)
        if op.type in BRANCHES:
            return self._plan_branches(op, off)
        if op.type in LOOPS:
            return self._plan_loop(op, off)
        if not any(each.dtype == tf.float32 for each in op.inputs):
            return self._as_it_is(op, SOURCE, "takes no float32")
        if off:
            return self._as_it_is(
                op, AS_WRITTEN, "in a region that is left as written"
            )
        return self._plan_listed(op)

    def _plan_listed(self, op: tf.Operation) -> OpPlan:
        category = self.target.lists.category(op.type)
        if category == op_lists.LOW:
            return self._plan_low(op)
        if category in (op_lists.WIDEST, op_lists.NEUTRAL):
            return self._plan_following(op, category)
        if category == op_lists.FULL:
            return self._as_it_is(op, op_lists.FULL, "in the list of full ops")
        return self._as_it_is(op, UNKNOWN, "in no list")

    def _as_it_is(self, op: tf.Operation, kind: str, reason: str) -> OpPlan:
        return OpPlan(
            op,
            kind,
            reason,
            tuple(each.dtype for each in op.inputs),
            tuple(each.dtype for each in op.outputs),
        )

    def _changed(
        self, op: tf.Operation, kind: str, reason: str, keys: Iterable[TypeKey]
    ) -> OpPlan:
        """Returns the plan of an op some types of which become 16-bit."""
        changed = frozenset(keys)
        dtypes = [
            tuple(
                self.target.low if key in changed else tensor.dtype
                for key, tensor in zip(some, tensors, strict=True)
            )
            for some, tensors in zip(
                self.signatures[op], (op.inputs, op.outputs), strict=True
            )
        ]
        return OpPlan(op, kind, reason, dtypes[0], dtypes[1], changed)

    def _float32_keys(
        self, op: tf.Operation, outputs: bool
    ) -> dict[TypeKey, list[tf.Tensor]]:
        """Returns the float32 types of an op, with the inputs of each."""
        found: dict[TypeKey, list[tf.Tensor]] = {}
        signature = self.signatures[op]
        for key, tensor in zip(signature.inputs, op.inputs, strict=True):
            if key is not None and tensor.dtype == tf.float32:
                found.setdefault(key, []).append(tensor)
        if outputs:
            for key, tensor in zip(signature.outputs, op.outputs, strict=True):
                if key is not None and tensor.dtype == tf.float32:
                    found.setdefault(key, [])
        return found

    def _runs(self, op: tf.Operation, changed: Iterable[TypeKey]) -> bool:
        """Returns whether there is a kernel for an op in its new types."""
        dtypes = {
            name: tf.as_dtype(value.type)
            for name, value in op.node_def.attr.items()
            if value.type
        }
        for key in changed:
            if key.place is None:
                dtypes[key.name] = self.target.low
        device = kernels.device_of(op, self.target.device)
        return kernels.has_kernel(op.type, dtypes, device)

    def _no_kernel(self, op: tf.Operation, category: str) -> OpPlan:
        device = kernels.device_of(op, self.target.device)
        return self._as_it_is(
            op,
            category,
            f"no {self.target.low.name} kernel on the {device}",
        )

    def _plan_low(self, op: tf.Operation) -> OpPlan:
        keys = self._float32_keys(op, outputs=True)
        if not self._runs(op, keys):
            return self._no_kernel(op, op_lists.LOW)
        return self._changed(op, op_lists.LOW, "in the list of low ops", keys)

    def _plan_following(self, op: tf.Operation, category: str) -> OpPlan:
        if op.name in self.rounded_first:
            return self._changed(
                op,
                category,
                "only low ops use it, and it moves values",
                self._float32_keys(op, outputs=False),
            )
        if self._sums_backward(op):
            return self._as_it_is(
                op,
                category,
                "its gradient is a sum, which CPUs make in float16",
            )
        low, reasons = [], []
        for key, tensors in self._float32_keys(op, outputs=False).items():
            why = self._reason_for_float32(tensors)
            if why is None:
                low.append(key)
            else:
                reasons.append(why)
        if not low:
            return self._as_it_is(op, category, "; ".join(reasons))
        if not self._runs(op, low):
            return self._no_kernel(op, category)
        return self._changed(op, category, "follows its inputs", low)

    def _sums_backward(self, op: tf.Operation) -> bool:
        """Returns whether a gradient would be summed in 16 bits.

        TensorFlow's CPU kernel of `Sum` adds up float16 in float16, and so
        stops growing at 2048 equal terms; bfloat16 in float32.
        """
        return (
            self.target.low == tf.float16
            and kernels.device_of(op, self.target.device) == "CPU"
            and broadcasts(op)
        )

    def _reason_for_float32(self, tensors: list[tf.Tensor]) -> str | None:
        """Returns why inputs are computed with in float32, if they are."""
        values = [self._value(each) for each in tensors]
        computed = [
            (tensor, value)
            for tensor, value in zip(tensors, values, strict=True)
            if not value.parameter or value.dtype == self.target.low
        ]
        if not computed:
            return "only parameters come in"
        for tensor, value in computed:
            if value.dtype != self.target.low:
                if tensor.op.type == "Const":
                    return f"constant {tensor.name} does not fit"
                return f"float32 input {tensor.name}"
        return None

    def _rounded_first(self, pairs: list[tuple[Any, bool]]) -> frozenset[str]:
        """Returns the ops that may as well move 16-bit values.

        All that uses their values would round them.
        """
        outputs = {id(each) for each in self.outputs}
        users: dict[int, list[tuple[Any, bool, int]]] = {}
        for op, off in pairs:
            for index, tensor in enumerate(op.inputs):
                users.setdefault(id(tensor), []).append((op, off, index))
        found: set[str] = set()

        def rounds(op: tf.Operation, off: bool, index: int) -> bool:
            if off:
                return False
            if op.name in found:
                return index == 0
            return (
                self.target.lists.category(op.type) == op_lists.LOW
                and self.signatures[op].inputs[index] is not None
                and self._runs(op, self._float32_keys(op, outputs=True))
            )

        for op, off in reversed(pairs):
            if (
                not off
                and op.type in _KEEP_SIZE
                and self.target.lists.category(op.type) == op_lists.NEUTRAL
                and op.inputs[0].dtype == tf.float32
                and id(op.outputs[0]) in users
                and id(op.outputs[0]) not in outputs
                and all(rounds(*each) for each in users[id(op.outputs[0])])
            ):
                found.add(op.name)
        return frozenset(found)

    def _nested(
        self, graph: Any, inputs: Sequence[_Value], off: bool
    ) -> GraphPlan:
        """Returns the plan of a function that an op calls.

        Args:
            graph: The graph of the function.
            inputs: What is known of its inputs.
            off: Whether it stays as it is written.
        """
        return Planner(
            self.target,
            graph,
            [
                (inside, value.dtype)
                for inside, value in zip(graph.inputs, inputs, strict=True)
            ],
            graph.outputs,
            [value.parameter for value in inputs],
            off,
            self.keeps_all,
        ).plan()

    def _functions(self, op: tf.Operation) -> list[Any]:
        """Returns the graphs of the functions that an op calls."""
        return [
            tensorflow_internals.function_graph(self.graph, name, op)
            for name in function_names(op)
        ]

    def _plan_call(self, op: tf.Operation, off: bool) -> OpPlan:
        (graph,) = self._functions(op)
        values = [self._value(each) for each in op.inputs]
        plan = self._nested(graph, values, off)
        return OpPlan(
            op,
            CONTROL_FLOW,
            "the function is rewritten where it is called",
            tuple(value.dtype for value in values),
            plan.outputs,
            graphs=(plan,),
        )

    def _plan_branches(self, op: tf.Operation, off: bool) -> OpPlan:
        values = [self._value(each) for each in op.inputs]
        plans = tuple(
            self._nested(graph, values[1:], off)
            for graph in self._functions(op)
        )
        outputs = tuple(
            dtypes[0] if len(set(dtypes)) == 1 else tensor.dtype
            for tensor, *dtypes in zip(
                op.outputs, *(each.outputs for each in plans), strict=True
            )
        )
        return OpPlan(
            op,
            CONTROL_FLOW,
            "an output is 16-bit where it is in all branches",
            tuple(value.dtype for value in values),
            outputs,
            graphs=plans,
        )

    def _plan_loop(self, op: tf.Operation, off: bool) -> OpPlan:
        condition, body = self._functions(op)
        invariant = invariants(body)
        values = [
            self._value(each) if same else _Value(each.dtype)
            for each, same in zip(op.inputs, invariant, strict=True)
        ]
        return OpPlan(
            op,
            CONTROL_FLOW,
            "what a loop carries from turn to turn stays float32",
            tuple(value.dtype for value in values),
            tuple(value.dtype for value in values),
            graphs=(
                self._nested(condition, values, off),
                self._nested(body, values, off),
            ),
        )
