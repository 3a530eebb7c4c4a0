"""What results look like: one description of each, many ways to show it.

```text
document   plain data: verdict, findings, facts, tables, figures
report     `Report`, the base of all results: a record with a `document()`
text       a document in plain text            cells     numbers in words
markdown   in Markdown                         figures   matplotlib, SVG
html       as one page, figures included       plots     one for each kind
tables     as comma-separated values
summary    for TensorBoard
json_text  not the document, but the fields of the record
```

A new result says what there is to show of it, once. A new way to show results
is one module with `rendered(document)`, and knows no result.
"""

from tf_mixprec.reports.document import ERROR
from tf_mixprec.reports.document import INFO
from tf_mixprec.reports.document import WARNING
from tf_mixprec.reports.document import Bars
from tf_mixprec.reports.document import Document
from tf_mixprec.reports.document import ExponentHistogram
from tf_mixprec.reports.document import Finding
from tf_mixprec.reports.document import HeatMap
from tf_mixprec.reports.document import Lines
from tf_mixprec.reports.document import Table
from tf_mixprec.reports.report import Report
from tf_mixprec.reports.report import ranked

__all__ = [
    "Bars",
    "Document",
    "ERROR",
    "ExponentHistogram",
    "Finding",
    "HeatMap",
    "INFO",
    "Lines",
    "Report",
    "Table",
    "WARNING",
    "ranked",
]
