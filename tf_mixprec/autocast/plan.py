"""What becomes of each op of a graph, decided before anything is built."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.autocast import op_lists
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast.signature import TypeKey

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
# TensorFlow 1's, which only graphs without functions have.
OLD_CONTROL_FLOW = ("Switch", "Merge", "Enter", "Exit", "NextIteration")

# What takes a variable and does not write it.
_READERS = frozenset(
    (
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    )
)

AS_WRITTEN = "as written"
UNKNOWN = "unknown"
CONTROL_FLOW = "control flow"
SOURCE = "source"


@dataclasses.dataclass
class OpPlan:
    """What becomes of one op.

    Args:
        op: The `tf.Operation`, as it was traced.
        kind: The list it is in, `"unknown"`, `"as written"`, `"source"` (no
            float32 comes in) or `"control flow"`.
        reason: Why, in words.
        inputs: The dtype that each input must have.
        outputs: The dtype that each output will have.
        changed: The type attributes that become 16-bit.
        graphs: The plans of the functions that it calls.
        off: Whether it, and its gradient, stay as they are written.
    """

    op: tf.Operation
    kind: str
    reason: str
    inputs: tuple[tf.DType, ...]
    outputs: tuple[tf.DType, ...]
    changed: frozenset[TypeKey] = frozenset()
    graphs: tuple[GraphPlan, ...] = ()
    off: bool = False

    @property
    def is_low(self) -> bool:
        """Whether the op takes or gives 16 bits in place of float32."""
        return bool(self.changed)


@dataclasses.dataclass
class GraphPlan:
    """What becomes of the ops of a graph.

    Args:
        graph: The `FuncGraph`, as it was traced.
        ops: The plans of its ops, in the order in which they were traced.
        outputs: The dtypes that its outputs will have.
        dtypes: By the ids of its tensors, the dtypes that they will have.
    """

    graph: Any
    ops: list[OpPlan]
    outputs: tuple[tf.DType, ...]
    dtypes: dict[int, tf.DType]


@dataclasses.dataclass(frozen=True)
class Target:
    """What is to become of a function.

    Args:
        low: The 16-bit dtype.
        lists: The `OpLists`.
        device: `"CPU"` or `"GPU"`, where ops without a device are to run.
    """

    low: tf.DType
    lists: op_lists.OpLists
    device: str


@functools.cache
def _is_function(op_type: str) -> bool:
    """Returns whether a type of traced ops is the name of a function."""
    return not tensorflow_internals.op_exists(op_type)


def is_call(op: tf.Operation) -> bool:
    """Returns whether an op calls a function, and does no more.

    TensorFlow 1's calls have the name of the function for a type.
    """
    return op.type in _CALLS or _is_function(op.type)


def function_names(op: tf.Operation) -> list[str]:
    """Returns the names of the functions of an op of control flow.

    Those of both branches, of a loop's condition and its body, in this order.
    """
    if op.type in _CALLS:
        return [op.get_attr("f").name]
    if is_call(op):
        return [op.type]
    if op.type in LOOPS:
        return [op.get_attr("cond").name, op.get_attr("body").name]
    if op.type in ("If", "StatelessIf"):
        return [
            op.get_attr("then_branch").name,
            op.get_attr("else_branch").name,
        ]
    if op.type in BRANCHES:
        return [each.name for each in op.get_attr("branches")]
    return []


def invariants(body: Any) -> list[bool]:
    """Returns which inputs of a loop's body come out of it as they went in."""
    return [
        given is taken
        for given, taken in zip(body.outputs, body.inputs, strict=True)
    ]


def uses_of_resources(
    plan: GraphPlan, handles: dict[int, Any]
) -> Iterator[tuple[tf.Operation, Any]]:
    """Yields the ops that use resources, with what these are outside.

    Args:
        plan: The plan of a graph; its functions are gone into.
        handles: Dict from ids of its tensors to what these stand for; others
            stand for themselves.
    """
    for each in plan.ops:
        resources = [t for t in each.op.inputs if t.dtype == tf.resource]
        if not each.graphs:
            for tensor in resources:
                yield each.op, handles.get(id(tensor), tensor)
        elif resources:
            given = list(each.op.inputs)
            if each.op.type in BRANCHES:
                given = given[1:]
            for graph in each.graphs:
                pairs = zip(graph.graph.inputs, given, strict=True)
                yield from uses_of_resources(
                    graph,
                    {
                        id(inner): handles.get(id(outer), outer)
                        for inner, outer in pairs
                    },
                )


def written(uses: Iterable[tuple[tf.Operation, Any]]) -> frozenset[int]:
    """Returns the ids of the handles of variables that are written.

    Args:
        uses: What `uses_of_resources` yields.
    """
    return frozenset(
        id(handle) for op, handle in uses if op.type not in _READERS
    )
