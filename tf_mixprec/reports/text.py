"""Documents in plain text. Figures are left out; tables have their numbers."""

import textwrap

from tf_mixprec._table import table_text
from tf_mixprec.reports.cells import cell_text
from tf_mixprec.reports.cells import numeric_columns
from tf_mixprec.reports.cells import one_line
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import Table

_COLUMNS = 88
_INDENT = "  "


def rendered(document: Document) -> str:
    """Returns a document as text."""
    title = one_line(document.title)
    parts = [f"{title}\n{'=' * len(title)}", _wrapped(document.verdict)]
    parts += [_facts(document)] if document.facts else []
    parts += [_finding(each) for each in document.findings]
    parts += [
        _table(each) for each in document.blocks if isinstance(each, Table)
    ]
    return "\n\n".join(parts)


def _facts(document: Document) -> str:
    width = max(len(one_line(name)) for name in document.facts) + 2
    return "\n".join(
        _wrapped(
            f"{one_line(name):<{width}}{cell_text(value)}", " " * width, ""
        )
        for name, value in document.facts.items()
    )


def _finding(finding: Finding) -> str:
    words = (finding.level.upper(), finding.code, finding.layer)
    sentences = (finding.what, finding.why, finding.remedy)
    lines = ["  ".join(one_line(each) for each in words if each)]
    lines += [_wrapped(each, _INDENT, _INDENT) for each in sentences if each]
    return "\n".join(lines)


def _table(table: Table) -> str:
    parts = [one_line(table.title)]
    if table.rows:
        parts.append(_grid(table))
    else:
        parts.append(f"{_INDENT}none")
    if table.note:
        parts.append(_wrapped(table.note))
    return "\n".join(parts)


def _grid(table: Table) -> str:
    """Returns the cells, numbers below each other by their last digit."""
    rows = [[one_line(name) for name in table.columns]]
    rows += [[cell_text(cell) for cell in row] for row in table.rows]
    is_numeric = numeric_columns(table.rows, len(table.columns))
    columns = [
        _right(column) if numeric else column
        for column, numeric in zip(
            zip(*rows, strict=True), is_numeric, strict=True
        )
    ]
    return table_text(list(zip(*columns, strict=True)))


def _right(column: tuple[str, ...]) -> tuple[str, ...]:
    width = max(map(len, column))
    return tuple(cell.rjust(width) for cell in column)


def _wrapped(text: str, later: str = "", first: str = "") -> str:
    return textwrap.fill(
        one_line(text),
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
