"""Findings and tables of a document as comma-separated values."""

import csv
import dataclasses
import io

from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import Table

_FIELDS = tuple(each.name for each in dataclasses.fields(Finding))


def rendered(document: Document) -> str:
    """Returns findings and tables below each other.

    Each has a line with its title, a line with its columns, its rows, and an
    empty line. Numbers have all their digits.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for table in (_findings(document), *document.blocks):
        if isinstance(table, Table):
            writer.writerow([table.title])
            writer.writerow(table.columns)
            writer.writerows(table.rows)
            writer.writerow([])
    return file.getvalue()


def _findings(document: Document) -> Table:
    return Table(
        title="findings",
        columns=_FIELDS,
        rows=tuple(
            tuple(getattr(finding, name) for name in _FIELDS)
            for finding in document.findings
        ),
    )
