"""Values of tables and facts as readers want them: short, and on one line."""

import numbers
import re
from collections.abc import Sequence
from typing import Any

# Of C0 and C1; XML has no way to write them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def one_line(text: str) -> str:
    """Returns a text without line breaks and other control characters."""
    return _CONTROL.sub(" ", text).strip()


def cell_text(value: Any) -> str:
    """Returns a value in words: numbers with four digits or as integers.

    Args:
        value: A string, a number, a bool, `None` for an empty cell, or
            anything else, which is printed.

    Example:

    >>> [cell_text(x) for x in (0.123456, 65504.0, 1e-7, None, True, "5 %")]
    ['0.1235', '65,504', '1e-07', '', 'yes', '5 %']
    """
    if value is None:
        return ""
    if is_number(value):
        return _number_text(value)
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's as well
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(each) for each in value)
    return one_line(str(value))


def is_number(value: Any) -> bool:
    """Returns whether a value is a real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def numeric_columns(
    rows: Sequence[Sequence[Any]], count: int
) -> tuple[bool, ...]:
    """Returns for each column whether it has numbers and nothing else.

    Args:
        rows: The cells.
        count: The number of columns.
    """
    return tuple(
        any(is_number(row[index]) for row in rows)
        and all(row[index] is None or is_number(row[index]) for row in rows)
        for index in range(count)
    )


def _number_text(value: Any) -> str:
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    value = float(value)
    if 1000 <= abs(value) < 1e12 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.4g}"
