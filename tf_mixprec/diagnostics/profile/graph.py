"""What a traced function does, counted in its graph."""

import collections
import math
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.autocast import plan
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.diagnostics.audit.ops import op_facts
from tf_mixprec.diagnostics.audit.trace import ModelTrace
from tf_mixprec.diagnostics.audit.trace import TracedOp
from tf_mixprec.diagnostics.profile.records import GraphFacts

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# What only hands on, or holds, what others have computed.
_PASSIVE = frozenset(
    {
        "Const",
        "EmptyTensorList",
        "Identity",
        "IdentityN",
        "PartitionedCall",
        "Placeholder",
        "ReadVariableOp",
        "StatefulPartitionedCall",
        "StatelessWhile",
        "StopGradient",
        "While",
    }
)


def graph_facts(concrete: Any) -> GraphFacts:
    """Returns what a function does in a call.

    Operations that its results and its writes need; those in functions that it
    calls, as often as they are called in the graph; those in loops once, but
    with the multiply-adds and bytes of all turns.

    Args:
        concrete: A concrete function, traced with shapes that are all known.
    """
    ops = tuple(_live_ops(concrete.graph, 1))
    facts = op_facts(
        ModelTrace(
            ops=ops,
            owners={},
            calls={},
            output_dtypes=(),
            loss_dtypes=(),
            batch_size=0,
        )
    )
    counts = collections.Counter(filter(None, map(float_dtype, ops)))
    products = [(each.dtype, each.multiply_adds) for each in facts.products]
    products += filter(None, map(_filter_gradient, ops))
    multiply_adds: collections.Counter[str] = collections.Counter()
    for dtype, count in products:
        multiply_adds[dtype] += count or 0
    return GraphFacts(
        ops=dict(counts.most_common()),
        casts=len(facts.casts),
        cast_bytes=sum(each.bytes or 0 for each in facts.casts),
        multiply_adds=dict(multiply_adds.most_common()),
        unknown_products=sum(count is None for _, count in products),
    )


def dtypes_by_name(concrete: Any) -> dict[str, str]:
    """Returns the dtype of each operation that computes floats, by name.

    Args:
        concrete: A concrete function.
    """
    return {
        each.op.name: dtype
        for each in _live_ops(concrete.graph, 1)
        if (dtype := float_dtype(each))
    }


def float_dtype(traced: TracedOp) -> str:
    """Returns the dtype of floats that an operation computes, or nothing."""
    op = traced.op
    if op.type in _PASSIVE or not op.outputs:
        return ""
    dtype = op.outputs[0].dtype.base_dtype
    return dtype.name if dtype.is_floating else ""


def _live_ops(graph: Any, times: int | None) -> Iterator[TracedOp]:
    """Yields what results and writes of a graph need, inner graphs included.

    Args:
        graph: The `FuncGraph`.
        times: How often it runs in a call; `None` if that is not known.
    """
    waiting = [tensor.op for tensor in graph.outputs]
    waiting += graph.control_outputs
    seen: set[int] = set()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        yield TracedOp(op, "", times)
        waiting += [tensor.op for tensor in op.inputs]
        waiting += op.control_inputs
        for name in plan.function_names(op):
            inner = tensorflow_internals.function_graph(graph, name, op)
            yield from _live_ops(inner, _times(op, times))


def _times(op: Any, times: int | None) -> int | None:
    """Returns how often what an operation calls runs."""
    if op.type not in plan.LOOPS:
        return times
    # After its counter a loop has its maximum, which Keras's layers reach.
    turns = _static_int(op.inputs[1])
    return None if times is None or turns is None else turns * times


def _static_int(tensor: Any) -> int | None:
    """Returns a scalar that is known; `None` if it is not, or below 0."""
    if tensor.op.type == "Max" and tensor.op.inputs[0].shape.rank == 0:
        tensor = tensor.op.inputs[0]  # Keras: the largest of one length
    value = tf.get_static_value(tensor)
    return None if value is None or value < 0 else int(value)


def _filter_gradient(traced: TracedOp) -> tuple[str, int | None] | None:
    """Returns dtype and multiply-adds of a gradient of a convolution.

    With as many as the convolution itself: one for each pair of a number of
    the output and one of its filter.
    """
    op = traced.op
    if op.type in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"):
        *window, _ = op.outputs[0].shape
    elif op.type == "DepthwiseConv2dNativeBackpropFilter":
        window = op.outputs[0].shape[:2]
    elif op.type == "DepthwiseConv2dNativeBackpropInput":
        window = op.inputs[1].shape[:2]
    else:
        return None
    output = op.inputs[2]
    factors = [*output.shape, *window, traced.times]
    count = None if None in factors else math.prod(factors)
    return output.dtype.name, count
