"""Tables in plain text."""

from collections.abc import Sequence


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines, their columns below each other.

    Args:
        rows: The cells of each row, of one number.

    Example:

    >>> print(table_text([("op", "count"), ("MatMul", "2")]))
    op      count
    MatMul  2
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
    )
