"""What operations of a trace mean for precision: plain records."""

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_mixprec.diagnostics.audit.products import Product
from tf_mixprec.diagnostics.audit.products import product_of
from tf_mixprec.diagnostics.audit.products import size_of
from tf_mixprec.diagnostics.audit.products import times
from tf_mixprec.diagnostics.audit.trace import ModelTrace
from tf_mixprec.diagnostics.audit.trace import TracedOp
from tf_mixprec.numerics.casting import has_16_bits

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cast:
    """A cast between a 16-bit dtype and another float.

    Args:
        path: Of the layer that casts.
        producer: Of the layer that made what is cast.
        source: The dtype that is cast.
        target: The dtype it is cast to.
        before: The dtype that the source was cast from just before; empty if
            it was not.
        bytes: Read and written in a call of the model; `None` if not known.
        of_weight: Whether it is a variable that is cast.
    """

    path: str
    producer: str
    source: str
    target: str
    before: str
    bytes: int | None
    of_weight: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum:
    """A sum of many numbers, or a mean or a softmax.

    Args:
        path: Of the layer.
        op_type: The type of the operation.
        dtype: Of what is summed.
        count: How many numbers are summed; `None` if not known.
        to_the_last_axis: Whether it is along the last axes alone.
    """

    path: str
    op_type: str
    dtype: str
    count: int | None
    to_the_last_axis: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant that a 16-bit dtype does not hold.

    Args:
        path: Of the layer.
        dtype: Its dtype.
        value: What became of it: 0 or inf.
        op_type: The type of the operation that uses it.
    """

    path: str
    dtype: str
    value: float
    op_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpFacts:
    """What the operations of a trace are."""

    products: tuple[Product, ...]
    casts: tuple[Cast, ...]
    sums: tuple[Sum, ...]
    constants: tuple[Constant, ...]


def op_facts(trace: ModelTrace) -> OpFacts:
    """Returns what matters of the operations of a trace."""
    ops = trace.ops
    return OpFacts(
        products=tuple(filter(None, map(product_of, ops))),
        casts=tuple(
            _cast(each, trace.owners) for each in ops if _is_cast(each.op)
        ),
        sums=tuple(_sum(each) for each in ops if each.op.type in _SUMS),
        constants=tuple(_constants(ops)),
    )


def _is_cast(op: Any) -> bool:
    if op.type != "Cast":
        return False
    dtypes = (op.inputs[0].dtype, op.outputs[0].dtype)
    return all(each.is_floating for each in dtypes) and any(
        has_16_bits(each.name) for each in dtypes
    )


def _cast(traced: TracedOp, owners: Mapping[int, str]) -> Cast:
    (source,), (target,) = traced.op.inputs, traced.op.outputs
    before = source.op.inputs[0].dtype.name if _is_cast(source.op) else ""
    size = times(size_of(source.shape), traced.times)
    return Cast(
        path=traced.path,
        producer=owners.get(id(source.op), ""),
        source=source.dtype.name,
        target=target.dtype.name,
        before=before,
        bytes=times(size, source.dtype.size + target.dtype.size),
        of_weight=source.op.type == "ReadVariableOp",
    )


_SUMS = {
    "Mean": 1,
    "Sum": 1,
    "EuclideanNorm": 1,
    "Cumsum": 1,
    "L2Loss": None,
    "Softmax": None,
    "LogSoftmax": None,
    "SegmentSumV2": None,
    "UnsortedSegmentSum": None,
}


def _sum(traced: TracedOp) -> Sum:
    op = traced.op
    tensor = op.inputs[0]
    axes = _axes(op)
    rank = tensor.shape.rank
    count = None
    if axes is not None and rank is not None:
        count = times(*(tensor.shape[axis] for axis in axes))
    return Sum(
        path=traced.path,
        op_type=op.type,
        dtype=tensor.dtype.name,
        count=count,
        to_the_last_axis=bool(axes)
        and rank is not None
        and sorted(axes or ()) == list(range(rank - len(axes or ()), rank)),
    )


def _axes(op: Any) -> tuple[int, ...] | None:
    """Returns the axes that are summed over, not negative."""
    rank = op.inputs[0].shape.rank
    if rank is None:
        return None
    if op.type in ("Softmax", "LogSoftmax"):
        return (rank - 1,)
    if op.type in ("SegmentSumV2", "UnsortedSegmentSum"):
        return tuple(range(op.inputs[1].shape.rank or 0))
    if op.type == "L2Loss":
        return tuple(range(rank))
    axes = tf.get_static_value(op.inputs[1])
    if axes is None:
        return None
    return tuple(int(axis) % rank for axis in np.ravel(axes))


def _constants(ops: Sequence[TracedOp]) -> Iterator[Constant]:
    """Yields constants that became 0 where they are added, or infinite."""
    users: dict[int, set[tuple[str, int]]] = {}
    for op, _, _ in ops:
        for place, tensor in enumerate(op.inputs):
            users.setdefault(id(tensor.op), set()).add((op.type, place))
    for op, path, _ in ops:
        for place, tensor in enumerate(op.inputs):
            value = _scalar(tensor)
            if value is None:
                continue
            # Python's `sum` adds to a 0, on the left.
            is_epsilon = place == 1 and op.type in ("Add", "AddV2", "Maximum")
            divides = _DIVISORS & users.get(id(op), set())
            vanishes = value == 0.0 and is_epsilon and divides
            if vanishes or (math.isinf(value) and op.type in _COMPUTES):
                yield _constant(path, tensor, value, op)


def _constant(path: str, tensor: Any, value: float, op: Any) -> Constant:
    return Constant(
        path=path, dtype=tensor.dtype.name, value=value, op_type=op.type
    )


def _scalar(tensor: Any) -> float | None:
    """Returns the value of a 16-bit constant of one element."""
    if not has_16_bits(tensor.dtype.name) or size_of(tensor.shape) != 1:
        return None
    if tensor.op.type not in ("Const", "Cast"):
        return None
    value = tf.get_static_value(tensor)
    return None if value is None else float(np.ravel(value)[0])


_COMPUTES = ("Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum")
# Operations that make inf or nan of a 0, and which of their inputs it is.
_DIVISORS = {
    ("Rsqrt", 0),
    ("Sqrt", 0),
    ("Log", 0),
    ("Reciprocal", 0),
    ("RealDiv", 1),
    ("Div", 1),
}
