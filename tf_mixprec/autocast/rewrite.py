"""Traces a function, decides about its ops and builds them again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tf_mixprec.autocast import custom_gradients
from tf_mixprec.autocast import parameters
from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast.casts import CastRecord
from tf_mixprec.autocast.casts import Frame
from tf_mixprec.autocast.emit import Emitter
from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import Target
from tf_mixprec.autocast.plan import uses_of_resources
from tf_mixprec.autocast.plan import written
from tf_mixprec.autocast.planner import Planner
from tf_mixprec.autocast.trace import Trace

# What TensorFlow and Python say of a tensor that has no value.
_SYMBOLIC = re.compile(r"[Ss]ymbolic ?`?(tf\.)?Tensor")


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """What was done to a function.

    Args:
        target: The `Target`.
        plan: The `GraphPlan`.
        casts: The casts in the new graph.
    """

    target: Target
    plan: GraphPlan
    casts: list[CastRecord]


# On the graph that was built, which the traced one refers to: nothing else may
# keep them.
_KEPT = "_tf_mixprec_rewriting"


def rewriting_of(graph: Any) -> Rewriting | None:
    """Returns what was done to a function, of which a graph was built.

    Args:
        graph: A graph; `None` is returned if it is none of ours.
    """
    return getattr(graph, _KEPT, None)


def rewritten(
    function: Callable, target: Target, args: Any, kwargs: Any
) -> Any:
    """Calls a function in a graph, its ops in the dtypes of a target.

    What was done is what `rewriting_of` then returns for that graph.

    The function is traced in a graph of its own, which nothing runs, and its
    ops are built anew in the current graph, from the inputs on.

    Args:
        function: The function.
        target: The `Target`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        What the function returns, in the same dtypes.
    """
    trace = Trace("autocast", lambda: _traced(function, args, kwargs))
    plan = Planner(
        target,
        trace.graph,
        [(inside, inside.dtype) for inside, _ in trace.inputs],
        trace.graph.outputs,
        [
            parameters.is_constant_that_fits(outside, target.low)
            for _, outside in trace.inputs
        ],
        keeps_all=custom_gradients.are_in(trace.graph),
    ).plan()
    uses = uses_of_resources(plan, trace.outside_of)
    frame = Frame("function", written=written(uses))
    values = Emitter(target, plan, frame).run(trace.inputs)
    setattr(frame.graph, _KEPT, Rewriting(target, plan, frame.records))
    return trace.packed(
        [
            frame.get(value, old.dtype, old.name)
            for old, value in zip(trace.graph.outputs, values, strict=True)
        ]
    )


def _traced(function: Callable, args: Any, kwargs: Any) -> Any:
    """Calls a function with symbolic tensors."""
    try:
        return tensorflow_internals.converted(function)(*args, **kwargs)
    except (AttributeError, NotImplementedError, TypeError) as error:
        if not _SYMBOLIC.search(str(error)):
            raise
        raise TypeError(
            "`function` must be one that TensorFlow can trace, because its "
            "graph is what autocast rewrites; take out what needs the values "
            "of tensors, such as `.numpy()`, `float()` and NumPy's functions, "
            "or put it into `tf.numpy_function`. Received: function="
            f"{function!r}, which raised {type(error).__name__}: {error}"
        ) from error
