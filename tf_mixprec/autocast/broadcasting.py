"""Ops that repeat an input, and so sum its gradient."""

from __future__ import annotations

import itertools

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_REPEATING = frozenset(("BroadcastTo", "Tile"))
_ELEMENTWISE = frozenset(
    ("Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan")
    + ("FloorDiv", "FloorMod", "Maximum", "Minimum", "Atan2", "SelectV2")
)


def broadcasts(op: tf.Operation) -> bool:
    """Returns whether an op repeats an input that may have a gradient.

    Sizes that are not known are taken to be the same.

    Args:
        op: The op.
    """
    if op.type in _REPEATING:
        return True
    if op.type not in _ELEMENTWISE:
        return False
    shapes = [
        each.shape
        for each in op.inputs
        if each.dtype.is_floating and each.op.type != "Const"
    ]
    return any(
        not a.is_compatible_with(b)
        for a, b in itertools.combinations(shapes, 2)
    )
