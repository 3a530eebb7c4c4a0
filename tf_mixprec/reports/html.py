"""Documents as one page that needs nothing else: no network, no scripts."""

import html
import re
from typing import Any

from tf_mixprec.reports.cells import cell_text
from tf_mixprec.reports.cells import numeric_columns
from tf_mixprec.reports.cells import one_line
from tf_mixprec.reports.document import LEVELS
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Figure
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import Table
from tf_mixprec.reports.page_style import STYLE

_CODE = re.compile(r"`([^`]+)`")
_NO_FIGURE = (
    'Figures need matplotlib: `pip install "tf_mixprec[report]"`, '
    "and make the report again."
)


def rendered(document: Document) -> str:
    """Returns a document as a page."""
    body = [
        f"<h1>{_text(document.title)}</h1>",
        f'<p class="verdict {_worst(document)}">{_text(document.verdict)}</p>',
        _facts(document),
        _findings(document),
        *(_block(each, number) for number, each in enumerate(document.blocks)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escaped(document.title)}</title>\n"
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _worst(document: Document) -> str:
    levels = {finding.level for finding in document.findings}
    return next((level for level in LEVELS if level in levels), "clean")


def _facts(document: Document) -> str:
    if not document.facts:
        return ""
    facts = "\n".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in document.facts.items()
    )
    return f"<dl>\n{facts}\n</dl>"


def _findings(document: Document) -> str:
    if not document.findings:
        return ""
    cards = "\n".join(map(_card, document.findings))
    return f"<section>\n<h2>Findings</h2>\n{cards}\n</section>"


def _card(finding: Finding) -> str:
    level = finding.level if finding.level in LEVELS else "info"
    head = (
        f'<span class="level">{_text(finding.level)}</span> '
        f'<span class="code">{_text(finding.code)}</span>'
    )
    if finding.layer:
        head += f" <code>{_text(finding.layer)}</code>"
    parts = [
        f'<p class="{name}">{_text(sentence)}</p>'
        for name, sentence in (
            ("what", finding.what),
            ("why", finding.why),
            ("remedy", finding.remedy),
        )
        if sentence
    ]
    return f'<article class="{level}"><h3>{head}</h3>{"".join(parts)}</article>'


def _block(block: Table | Figure, number: int) -> str:
    if isinstance(block, Table):
        return _table(block)
    return (
        f"<figure>\n<figcaption>{_text(block.title)}</figcaption>\n"
        f'<div class="scroll">{_picture(block, number)}</div>\n</figure>'
    )


def _picture(figure: Figure, number: int) -> str:
    try:
        from tf_mixprec.reports import figures  # needs matplotlib
    except ImportError:
        return f'<p class="note">{_text(_NO_FIGURE)}</p>'
    picture = figures.svg(figure, prefix=f"figure{number}-")
    label = f'<svg role="img" aria-label="{_escaped(figure.title)}"'
    return picture.replace("<svg", label, 1)


def _table(table: Table) -> str:
    note = f'<p class="note">{_text(table.note)}</p>\n' if table.note else ""
    return (
        f"<section>\n<h2>{_text(table.title)}</h2>\n{note}"
        f"{_grid(table) if table.rows else '<p>None.</p>'}\n</section>"
    )


def _grid(table: Table) -> str:
    is_numeric = numeric_columns(table.rows, len(table.columns))
    classes = [' class="n"' if each else "" for each in is_numeric]
    head = _row("th", table.columns, classes)
    rows = "\n".join(_row("td", row, classes) for row in table.rows)
    return (
        '<div class="scroll">\n<table>\n'
        f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _row(tag: str, cells: tuple[Any, ...], classes: list[str]) -> str:
    inside = "".join(
        f"<{tag}{attribute}>{_text(cell)}</{tag}>"
        for cell, attribute in zip(cells, classes, strict=True)
    )
    return f"<tr>{inside}</tr>"


def _text(value: Any) -> str:
    """Returns a value for the page, with code in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(cell_text(value)))


def _escaped(text: str) -> str:
    return html.escape(one_line(text))
