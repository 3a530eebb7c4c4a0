"""Groups of ops in float32 that 16-bit values enter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import keras

from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import OpPlan

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Island:
    """A group of connected ops in float32 that 16-bit values enter.

    Args:
        ops: The paths of the ops, in order.
        cause: The path of the first that takes 16-bit values.
        cause_type: Its type.
        reason: Why it runs in float32.
        lone: Whether it is one op, and all that it returns is cast down again:
            two casts for one op.
    """

    ops: tuple[str, ...]
    cause: str
    cause_type: str
    reason: str
    lone: bool

    def __str__(self) -> str:
        """One line."""
        size = "1 op" if len(self.ops) == 1 else f"{len(self.ops)} ops"
        text = f"{self.cause} ({self.cause_type}): {size}, {self.reason}"
        return f"{text}; alone between 16-bit ops" if self.lone else text


def islands_of(
    plan: GraphPlan, low: tf.DType, prefix: str = ""
) -> Iterator[Island]:
    """Yields the islands of a graph.

    Args:
        plan: The plan of the graph.
        low: The 16-bit dtype.
        prefix: The path of what calls the graph.
    """
    for group in _groups(plan):
        enters = [each for each in group if _takes(plan, each, low)]
        if enters:
            cause = enters[0]
            yield Island(
                tuple(prefix + each.op.name for each in group),
                prefix + cause.op.name,
                cause.op.type,
                cause.reason,
                len(group) == 1 and _is_cast_down(plan, cause, low),
            )


def _takes(plan: GraphPlan, each: OpPlan, low: tf.DType) -> bool:
    """Returns whether a 16-bit value is cast to float32 for an op."""
    return any(
        wanted == tf.float32 and plan.dtypes.get(id(tensor)) == low
        for tensor, wanted in zip(each.op.inputs, each.inputs, strict=True)
    )


def _is_in_float32(each: OpPlan) -> bool:
    return (
        not each.is_low
        and not each.graphs
        and any(dtype == tf.float32 for dtype in each.inputs)
    )


def _groups(plan: GraphPlan) -> list[list[OpPlan]]:
    """Returns the groups of ops that hand float32 values to one another."""
    group_of: dict[tf.Operation, list[OpPlan]] = {}
    for each in plan.ops:
        if not _is_in_float32(each):
            continue
        group = [each]
        for tensor in each.op.inputs:
            other = group_of.get(tensor.op)
            if tensor.dtype == tf.float32 and other and other is not group:
                other += group
                for moved in group:
                    group_of[moved.op] = other
                group = other
        group_of[each.op] = group
    found = {id(group): group for group in group_of.values()}
    order = {each.op: index for index, each in enumerate(plan.ops)}
    return [
        sorted(group, key=lambda each: order[each.op])
        for group in found.values()
    ]


def _is_cast_down(plan: GraphPlan, each: OpPlan, low: tf.DType) -> bool:
    """Returns whether all that an op returns is used in 16 bits."""
    outputs = {id(t) for t in each.op.outputs if t.dtype == tf.float32}
    if outputs & {id(tensor) for tensor in plan.graph.outputs}:
        return False
    used = [
        wanted == low
        for user in plan.ops
        for tensor, wanted in zip(user.op.inputs, user.inputs, strict=True)
        if id(tensor) in outputs
    ]
    return bool(used) and all(used)
