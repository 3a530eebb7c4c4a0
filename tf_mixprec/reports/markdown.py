"""Documents in Markdown, as GitHub and TensorBoard read it. No figures."""

import re
from collections.abc import Sequence
from typing import Any

from tf_mixprec.reports.cells import cell_text
from tf_mixprec.reports.cells import numeric_columns
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import Table

# Underscores inside of words are no emphasis.
_SPECIAL = re.compile(r"[\\*\[\]<>`~]|(?<!\w)_|_(?!\w)|&(?=\w|#)")
_CODE = re.compile(r"(`[^`]+`)")


def rendered(document: Document) -> str:
    """Returns a document as Markdown."""
    parts = [f"# {_text(document.title)}", f"**{_text(document.verdict)}**"]
    if document.facts:
        parts.append(facts_text(document))
    if document.findings:
        parts.append(findings_text(document.findings))
    parts += [
        table_text(each) for each in document.blocks if isinstance(each, Table)
    ]
    return "\n\n".join(parts) + "\n"


def facts_text(document: Document) -> str:
    """Returns the facts as a list."""
    return "\n".join(
        f"- {_text(name)}: {_text(value)}"
        for name, value in document.facts.items()
    )


def findings_text(findings: Sequence[Finding]) -> str:
    """Returns findings as a list under a heading."""
    return "\n".join(["## Findings", "", *map(_finding, findings)])


def table_text(table: Table) -> str:
    """Returns a table under a heading."""
    lines = [f"## {_text(table.title)}", ""]
    if table.rows:
        is_numeric = numeric_columns(table.rows, len(table.columns))
        lines.append(_row(table.columns))
        lines.append(_line(["---:" if each else "---" for each in is_numeric]))
        lines += [_row(row) for row in table.rows]
    else:
        lines.append("None.")
    if table.note:
        lines += ["", _text(table.note)]
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    words = [f"**{_text(finding.level)}**", _text(finding.code)]
    words += [_text(finding.layer)] if finding.layer else []
    sentences = (finding.what, finding.why, finding.remedy)
    told = " ".join(_text(each) for each in sentences if each)
    return f"- {', '.join(words)}: {told}"


def _row(cells: Sequence[Any]) -> str:
    # A bar ends a cell even in code.
    return _line([_text(cell).replace("|", r"\|") for cell in cells])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: Any) -> str:
    """Returns a value without what would be markup, except for code."""
    return "".join(
        part if _CODE.fullmatch(part) else _SPECIAL.sub(r"\\\g<0>", part)
        for part in _CODE.split(cell_text(value))
    )
