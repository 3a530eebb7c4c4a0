"""Text, Markdown, CSV and JSON of documents."""

import collections
import csv
import doctest
import io
import json
import math

import ml_dtypes
import numpy as np
import pytest
from reports.documents import DOCUMENTS
from reports.documents import HOSTILE
from reports.documents import full_document
from reports.documents import hostile_document

from tf_mixprec.reports import cells
from tf_mixprec.reports import json_text
from tf_mixprec.reports import markdown
from tf_mixprec.reports import tables
from tf_mixprec.reports import text


@pytest.mark.parametrize("module", [cells, json_text])
def test_examples_run(module):
    failures, count = doctest.testmod(module)
    assert (failures, count > 0) == (0, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        ("7 %", "7 %"),
        (12345, "12,345"),
        (np.int32(7), "7"),
        (0.123456, "0.1235"),
        (np.float32(0.5), "0.5"),
        (2.0**34, "17,179,869,184"),
        (6e-8, "6e-08"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (0.0, "0"),
        (True, "yes"),
        (np.False_, "no"),
        ((1, "a"), "1, a"),
        (ml_dtypes.bfloat16(2), "2"),
    ],
)
def test_cell_text(value, expected):
    assert cells.cell_text(value) == expected


def test_columns_of_numbers_are_found():
    rows = [(1, "a", None, True), (None, 2, None, 2)]
    assert cells.numeric_columns(rows, 4) == (True, False, False, False)


@pytest.mark.parametrize("make", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("module", [text, markdown, tables])
def test_every_document_is_shown(make, module):
    assert module.rendered(make())


def test_text_has_the_verdict_first_and_findings_in_order():
    shown = text.rendered(full_document())
    places = [
        shown.index(words)
        for words in (
            "Audit of a model\n====",
            "1 error: it is wrong.",
            "mixed_float16",
            "ERROR  bad  a/b\n  What.\n  Why.\n  Do `this`.",
            "WARNING  poor\n",
            "INFO  good",
            "layers\nlayer  parameters   share",
        )
    ]
    assert places == sorted(places)
    assert "a|b        12,345  0.1235" in shown
    assert "lines" not in shown


def test_text_is_wrapped():
    document = full_document()
    long = " ".join(["word"] * 60)
    document = full_document().__class__(
        title="t", verdict=long, findings=document.findings
    )
    assert max(map(len, text.rendered(document).splitlines())) <= 88


def test_text_has_one_line_for_a_row():
    shown = text.rendered(hostile_document())
    assert "\x00" not in shown
    assert len([line for line in shown.splitlines() if line.strip()]) == 12


def test_markdown_has_a_table_for_github():
    shown = markdown.rendered(full_document())
    assert shown.startswith("# Audit of a model\n\n**1 error: it is wrong.**")
    assert "- **error**, bad, a/b: What. Why. Do `this`." in shown
    assert "| layer | parameters | share |\n| --- | ---: | ---: |" in shown
    assert r"| a\|b | 12,345 | 0.1235 |" in shown
    assert "| d | 7 | inf |" in shown


def test_markdown_escapes_what_would_be_markup():
    shown = markdown.rendered(hostile_document())
    assert "\n<" not in shown
    assert r"\<script\>alert('x\|y')\</script\>" in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    for row in rows:
        assert row.replace(r"\|", "").count("|") == 3
    assert "__init__" not in markdown._text("__init__")
    assert markdown._text("max_pooling_1") == "max_pooling_1"
    assert markdown._text("use `a_<b>` so") == "use `a_<b>` so"


def test_csv_is_read_back():
    document = full_document()
    rows = list(csv.reader(io.StringIO(tables.rendered(document))))
    assert rows[0] == ["findings"]
    assert " ".join(rows[1]) == "level code layer what why remedy value"
    assert rows[2][:3] == ["error", "bad", "a/b"]
    assert rows[4][-1] == "inf"
    start = rows.index(["layers"])
    assert rows[start + 1] == ["layer", "parameters", "share"]
    assert rows[start + 2] == ["a|b", "12345", "0.123456"]
    assert rows[start + 3] == ["c", "", "nan"]
    assert rows[start + 5] == []


def test_csv_keeps_hostile_strings():
    rows = list(csv.reader(io.StringIO(tables.rendered(hostile_document()))))
    assert rows.count([HOSTILE]) == 1
    assert [HOSTILE, "1"] in rows


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (np.float32(math.nan), "nan"),
        (np.float64(-math.inf), "-inf"),
        (np.float32(0.5), 0.5),
        (np.int8(3), 3),
        (np.True_, True),
        (ml_dtypes.bfloat16(2), 2.0),
        (np.array([[1.0, math.inf]]), [[1.0, "inf"]]),
        (np.array([1, 2], ml_dtypes.bfloat16), [1.0, 2.0]),
        (Pair(1, (2, None)), [1, [2, None]]),
        ({1: {"b": True}}, {"1": {"b": True}}),
        ({(1, 2): 3}, {"[1, 2]": 3}),
        (frozenset([1]), [1]),
        (HOSTILE, HOSTILE),
        (np.dtype("float16"), "float16"),
    ],
)
def test_json_is_strict_and_read_back(value, expected):
    def refuse(name):
        raise AssertionError(name)

    shown = json_text.rendered({"x": value})
    assert json.loads(shown, parse_constant=refuse) == {"x": expected}
