"""Constants that are 0 or inf in the dtype that a layer computes in."""

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes

from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.layers import is_narrow
from tf_mixprec.diagnostics.audit.layers import shown_path
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.numerics.epsilon import is_zero_in
from tf_mixprec.policies import kinds
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding

# What becomes of a constant: code, level, why, remedy.
_DIVISOR = (
    "epsilon-vanishes",
    ERROR,
    "It keeps what is divided by, or has its logarithm taken, away from 0; "
    "now that is inf or nan.",
    "Use `mp.epsilon({dtype!r})`, or compute this layer in float32.",
)
_VANISHES = (
    "constant-vanishes",
    WARNING,
    "What it multiplies becomes 0.",
    "Compute this layer in float32, as its twin in `mp.layers` does.",
)
_OVERFLOWS = (
    "constant-overflows",
    WARNING,
    "0 times inf is nan, and so is a softmax of nothing but -inf.",
    "Use a number that {dtype} has, such as -3e4, or compute this layer in "
    "float32.",
)


def findings(facts: ModelFacts) -> Iterator[Finding]:
    """Yields a finding for each layer and each thing that can happen."""
    seen = set()
    for finding in (*_of_attributes(facts), *_of_operations(facts)):
        if (finding.layer, finding.code) not in seen:
            seen.add((finding.layer, finding.code))
            yield finding


def rounded(value: float, dtype: str) -> float:
    """Returns 0 or inf where a dtype does not hold a number, or the number.

    Args:
        value: The number.
        dtype: The name of a float dtype.

    Example:

    >>> [rounded(x, "float16") for x in (1e-8, -1e9, 0.1)]
    [0.0, -inf, 0.1]
    """
    if math.isfinite(value) and abs(value) > float(ml_dtypes.finfo(dtype).max):
        return math.copysign(math.inf, value)
    return 0.0 if is_zero_in(dtype, value) else value


def _of_attributes(facts: ModelFacts) -> Iterator[Finding]:
    for each in facts.layers:
        if not _holds_constants_in_16_bits(each, facts.trace is not None):
            continue
        dtype = each.layer.compute_dtype
        for name, value in _numbers(each.layer):
            became = rounded(value, dtype)
            if became != value and (became == 0.0 or math.isinf(became)):
                what = f"`{name}` is {value:g}, and {became:g} in {dtype}."
                is_epsilon = "eps" in name
                yield _finding(each.path, dtype, what, became, is_epsilon)


def _of_operations(facts: ModelFacts) -> Iterator[Finding]:
    for each in facts.ops.constants:
        what = (
            f"A constant is {each.value:g} in {each.dtype}, where "
            f"{each.op_type} takes it."
        )
        yield _finding(each.path, each.dtype, what, each.value, True)


def _holds_constants_in_16_bits(each: TappedLayer, is_traced: bool) -> bool:
    """Returns whether what a layer has as an attribute is used in 16 bits.

    Code of users may use it in another dtype: its operations are looked at.
    Normalization layers of Keras's widen 16 bits before they add an epsilon.
    """
    if not is_narrow(each.layer):
        return False
    if not kinds.is_keras_own(each.layer):
        return not is_traced
    return kinds.kind_of(each.layer) != "normalization"


def _numbers(layer: Any) -> Iterator[tuple[str, float]]:
    for name, value in vars(layer).items():
        if isinstance(value, float) and not name.startswith("_"):
            yield name, value


def _finding(
    path: str, dtype: str, what: str, became: float, divides: bool
) -> Finding:
    if became == 0.0:
        code, level, why, remedy = _DIVISOR if divides else _VANISHES
    else:
        code, level, why, remedy = _OVERFLOWS
    return Finding(
        level=level,
        code=code,
        layer=shown_path(path),
        what=what,
        why=why,
        remedy=remedy.format(dtype=dtype),
        value=became,
    )
