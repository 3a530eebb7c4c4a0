"""The ops of a graph that matter, in an order in which they can be built."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def needed_ops(
    all_ops: Sequence[tf.Operation], outputs: Iterable[tf.Tensor]
) -> list[tf.Operation]:
    """Returns the ops that have a part in some outputs, or an effect.

    Args:
        all_ops: The ops of a graph.
        outputs: Tensors of the graph.
    """
    found: set[tf.Operation] = set()
    waiting = [each.op for each in outputs]
    waiting += [op for op in all_ops if op.op_def.is_stateful]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += before(op)
    return [op for op in all_ops if op in found]


def in_order(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns ops so that each is behind those whose results it takes.

    They are traced in such an order, but the gradient of a loop gives the loop
    inputs that are made after it.

    Args:
        ops: Some ops of a graph, in the order in which they were traced.
    """
    wanted = set(ops)
    done: set[tf.Operation] = set()
    result: list[tf.Operation] = []
    waiting = list(reversed(ops))
    while waiting:
        op = waiting[-1]
        missing = [e for e in before(op) if e in wanted and e not in done]
        if op in done:
            waiting.pop()
        elif missing:
            waiting += reversed(missing)
        else:
            done.add(waiting.pop())
            result.append(op)
    return result


def before(op: tf.Operation) -> list[tf.Operation]:
    """Returns the ops that an op waits for."""
    return [each.op for each in op.inputs] + list(op.control_inputs)
