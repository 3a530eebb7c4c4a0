"""What autocast does to a function, op by op."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._table import table_text
from tf_mixprec.autocast import plan as planning
from tf_mixprec.autocast.autocast import AutocastFunction
from tf_mixprec.autocast.autocast import BoundAutocastFunction
from tf_mixprec.autocast.autocast import autocast
from tf_mixprec.autocast.casts import CastRecord
from tf_mixprec.autocast.islands import Island
from tf_mixprec.autocast.islands import islands_of
from tf_mixprec.autocast.plan import GraphPlan
from tf_mixprec.autocast.plan import OpPlan
from tf_mixprec.autocast.rewrite import rewriting_of

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


_SHOWN = 20  # casts and islands in print


@dataclasses.dataclass(frozen=True)
class OpDecision:
    """What was decided about one op.

    Args:
        path: Its name, after those of the ops that call its function.
        op_type: Its type, such as `"MatMul"`.
        dtype: The float dtype that it runs in.
        kind: The list it is in, `"unknown"` if in none, `"as written"` if in a
            region of `mp.full_precision`, or `"source"` for what takes no
            float32.
        reason: Why, in words.
    """

    path: str
    op_type: str
    dtype: str
    kind: str
    reason: str


@dataclasses.dataclass(frozen=True)
class AutocastReport:
    """What autocast does to a function. Printed, it is a few tables.

    Args:
        dtype: The 16-bit dtype.
        decisions: One entry for each op that computes with floats.
        casts: The casts that were put in, in the order of the ops.
        islands: The groups of ops in float32 that 16-bit values enter.

    Example:

    >>> import tensorflow as tf
    >>> import tf_mixprec as mp
    >>> function = mp.autocast(lambda x: tf.exp(tf.matmul(x, x)), "bfloat16")
    >>> report = mp.autocast_report(function, tf.ones((2, 2)))
    >>> [(each.op_type, each.reason) for each in report.decisions]
    [('MatMul', 'in the list of low ops'), ('Exp', 'in the list of full ops')]
    >>> [each.cause for each in report.islands]
    ['Exp']
    """

    dtype: str
    decisions: tuple[OpDecision, ...]
    casts: tuple[CastRecord, ...]
    islands: tuple[Island, ...]

    @property
    def census(self) -> dict[tuple[str, str], int]:
        """How many ops there are of each type and dtype.

        Returns:
            Dict from pairs such as `("MatMul", "bfloat16")` to numbers.
        """
        return dict(
            collections.Counter(
                (each.op_type, each.dtype) for each in self.decisions
            )
        )

    @property
    def cast_bytes(self) -> int:
        """Bytes that the casts read and write in a call of the function.

        Those in a loop count for one turn; those of shapes that are not known
        do not.
        """
        return sum(each.bytes or 0 for each in self.casts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The types of ops that are in no list, sorted."""
        return tuple(
            sorted(
                {
                    each.op_type
                    for each in self.decisions
                    if each.kind == planning.UNKNOWN
                }
            )
        )

    def __str__(self) -> str:
        """The census, the casts, the islands and what is unknown."""
        parts = [
            table_text(
                [
                    ("op", "dtype", "count", "because"),
                    *(
                        (*key, str(count), self._reasons(*key))
                        for key, count in sorted(self.census.items())
                    ),
                ]
            ),
            f"casts: {len(self.casts)}, {self.cast_bytes:,} bytes in a call"
            + _listed(self.casts, "casts"),
            f"float32 islands: {len(self.islands)}"
            + _listed(self.islands, "islands"),
        ]
        if self.unknown:
            parts.append(
                "in no list, so as they are: "
                f"{', '.join(self.unknown)}; put them in one by "
                "`lists=mp.op_lists.DEFAULT.low(...)`"
            )
        return "\n\n".join([f"autocast to {self.dtype}", *parts])

    def _reasons(self, op_type: str, dtype: str) -> str:
        found = collections.Counter(
            each.reason
            for each in self.decisions
            if (each.op_type, each.dtype) == (op_type, dtype)
        )
        (reason, _), *others = found.most_common()
        return f"{reason} (and {len(others)} others)" if others else reason


def autocast_report(function: Any, *args: Any, **kwargs: Any) -> AutocastReport:
    """Returns what autocast does to a function, and why.

    The function is traced, and not run.

    Args:
        function: What `mp.autocast` returned; or a function, such as a training
            step, for what it would do with its defaults. Functions under
            autocast that it calls are reported as they are; of a model that
            `mp.compile` has put under autocast, ask for the report of
            `mp.autocast(model, dtype)`.
        *args: Arguments of the function, or `tf.TensorSpec`s for them.
        **kwargs: Its keyword arguments, likewise.

    Raises:
        ValueError: If autocast is off: of dtype `"float32"`, or `"auto"` on a
            device that gains from no 16-bit float.

    Example:

    >>> import tensorflow as tf
    >>> import tf_mixprec as mp
    >>> @mp.autocast(dtype="bfloat16")
    ... def function(x):
    ...     return tf.nn.softmax(tf.matmul(x, x))
    >>> report = mp.autocast_report(function, tf.ones((2, 2)))
    >>> report.census
    {('MatMul', 'bfloat16'): 1, ('Softmax', 'float32'): 1}
    >>> [(each.source, each.target, each.bytes) for each in report.casts]
    [('float32', 'bfloat16', 24), ('bfloat16', 'float32', 24)]
    """
    kinds = (AutocastFunction, BoundAutocastFunction)
    off = getattr(function, "is_full_precision", False)
    if not isinstance(function, kinds) and not off:
        function = autocast(function)
    if off or function.is_off:
        raise ValueError(
            "Autocast must be on for there to be something to report; give "
            '`mp.autocast` the dtype "bfloat16". Received: '
            f"function={function!r}"
        )
    rewriting = function.rewriting(*args, **kwargs)
    parts = list(_parts(rewriting.plan, rewriting.casts))
    low = tf.as_dtype(function.dtype)
    return AutocastReport(
        function.dtype,
        tuple(decision for part in parts for decision in _decisions(part)),
        tuple(
            dataclasses.replace(cast, tensor=part.prefix + cast.tensor)
            for part in parts
            for cast in part.casts
        ),
        tuple(
            island
            for part in parts
            for island in islands_of(part.plan, low, part.prefix)
        ),
    )


@dataclasses.dataclass
class _Part:
    """One graph of what was planned.

    Args:
        plan: Its plan.
        prefix: The path of what calls it.
        casts: The casts that were built for it and those that it calls; empty
            where the part of the caller has them.
    """

    plan: GraphPlan
    prefix: str
    casts: list[CastRecord]


def _parts(
    plan: GraphPlan, casts: list[CastRecord], prefix: str = ""
) -> Iterator[_Part]:
    """Yields a graph and those that it calls, also under an autocast of theirs.

    Args:
        plan: The plan of the graph.
        casts: The casts that were built for it.
        prefix: The path of what calls it.
    """
    yield _Part(plan, prefix, casts)
    for each in plan.ops:
        path = f"{prefix}{each.op.name}/"
        for graph in each.graphs:
            of_another = rewriting_of(graph.graph)
            if of_another is None:
                yield from _parts(graph, [], path)
            else:
                yield from _parts(of_another.plan, of_another.casts, path)


def _decisions(part: _Part) -> Iterator[OpDecision]:
    for each in part.plan.ops:
        dtype = _float_dtype(each)
        if dtype is not None and not each.graphs and _computes(each):
            yield OpDecision(
                part.prefix + each.op.name,
                each.op.type,
                dtype.name,
                each.kind,
                each.reason,
            )


def _computes(each: OpPlan) -> bool:
    """Returns whether an op is more than a name for a value."""
    return each.op.type not in ("Placeholder", "Const", "Identity", "NoOp")


def _float_dtype(each: OpPlan) -> tf.DType | None:
    """Returns the float dtype that an op runs in; `None` for no float."""
    floats = [
        dtype for dtype in (*each.inputs, *each.outputs) if dtype.is_floating
    ]
    low = [dtype for dtype in floats if dtype.size == 2]
    if each.is_low:
        return low[0]
    return floats[0] if floats else None


def _listed(entries: Sequence[Any], name: str) -> str:
    """Returns the lines of a list, the first of many."""
    lines = [f"\n  {each}" for each in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        rest = len(entries) - _SHOWN
        lines.append(f"\n  and {rest} more, in `report.{name}`")
    return "".join(lines)
