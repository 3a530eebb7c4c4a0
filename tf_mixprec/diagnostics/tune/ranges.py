"""Whether what a layer returns fits into a format, and with room to grow."""

from collections.abc import Iterator
from collections.abc import Sequence

from tf_mixprec.diagnostics.judgement import FEW
from tf_mixprec.diagnostics.judgement import LEAST_HEADROOM
from tf_mixprec.diagnostics.judgement import LEAST_SQNR
from tf_mixprec.diagnostics.judgement import MOST_UNDERFLOW
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics


def range_verdict(outputs: Sequence[TensorStatistics], dtype: str) -> str:
    """Returns what is wrong with outputs in a format; empty if nothing is.

    Args:
        outputs: Statistics of them in float32.
        dtype: The format.
    """
    worst: dict[str, str] = {}
    for each in outputs:
        for kind, text in _faults(each, dtype):
            worst.setdefault(kind, text)
    return "; ".join(worst.values())


def overflows(outputs: Sequence[TensorStatistics], dtype: str) -> bool:
    """Returns whether finite outputs become inf in a format.

    Args:
        outputs: Statistics of them in float32.
        dtype: The format.
    """
    return any(each.formats[dtype].overflow for each in outputs)


def _faults(values: TensorStatistics, dtype: str) -> Iterator[tuple[str, str]]:
    if values.formats[dtype].overflow:
        yield "overflow", f"{values.overflow_fraction(dtype):.2%} overflows"
    elif values.headroom(dtype) < LEAST_HEADROOM:
        yield "headroom", f"headroom {values.headroom(dtype):.1f} bits"
    lost = values.underflow_fraction(dtype)
    if lost > MOST_UNDERFLOW and values.nonzero >= FEW:
        yield "underflow", f"{lost:.1%} underflows"
    elif values.formats[dtype].noise and values.sqnr(dtype) < LEAST_SQNR:
        yield "noise", f"SQNR {values.sqnr(dtype):.0f} dB"
