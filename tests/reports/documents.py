"""Documents that the tests show."""

import math

import numpy as np

from tf_mixprec import reports

HOSTILE = "<script>alert('x|y')</script> & $a_b$\n\"*`é漢 \x00"


def finding(level="error", code="code", layer="", value=None, **sentences):
    words = {"what": "What.", "why": "Why.", "remedy": "Do `this`."}
    words.update(sentences)
    return reports.Finding(
        level=level, code=code, layer=layer, value=value, **words
    )


def lines(title="lines", **options):
    return reports.Lines(
        title=title,
        x_label="step",
        y_label="scale",
        x=(0.0, 1.0, 2.0),
        series={"first": (1.0, None, 4.0), "_second": (2.0, math.inf, 0.0)},
        marks={"skip $": 1.0},
        bounds={"largest": 8.0},
        **options,
    )


def bars(title="bars", count=3):
    values = (None, math.nan, *map(float, range(count)))
    return reports.Bars(
        title=title,
        label="bytes",
        labels=tuple(f"layer {n}" for n in range(len(values))),
        values=values,
        bounds={"all": 2.0},
    )


def heat_map(title="heat map"):
    return reports.HeatMap(
        title=title,
        label="share",
        rows=("a", "b"),
        columns=("c", "d"),
        values=((0.0, None), (math.inf, 1.0)),
    )


def histogram(title="histogram"):
    return reports.ExponentHistogram(
        title=title,
        exponents=(-3, -2, -1),
        series={"x": (0.25, 0.5, 0.25), "y": (0.0, 0.0, 1.0)},
        bands={"low": (-99, -3), "far away": (90, 99)},
    )


def full_document():
    """Returns a document with a block of each kind."""
    table = reports.Table(
        title="layers",
        columns=("layer", "parameters", "share"),
        rows=(
            ("a|b", 12345, 0.123456),
            ("c", None, math.nan),
            ("d", np.int64(7), np.float32(math.inf)),
        ),
        note="Read it well.",
    )
    return reports.Document(
        title="Audit of a model",
        verdict="1 error: it is wrong.",
        findings=(
            finding("error", "bad", "a/b", 3.0),
            finding("warning", "poor"),
            finding("info", "good", value=math.inf),
        ),
        facts={"policy": "mixed_float16", "batch": 32},
        blocks=(
            table,
            lines("log lines", log_x=True, log_y=True),
            lines(),
            bars(),
            heat_map(),
            histogram(),
        ),
    )


def hostile_document():
    """Returns a document of which every text is hostile."""
    table = reports.Table(
        title=HOSTILE,
        columns=(HOSTILE, "b"),
        rows=((HOSTILE, 1),),
        note=HOSTILE,
    )
    each = (lines, bars, heat_map, histogram)
    return reports.Document(
        title=HOSTILE,
        verdict=HOSTILE,
        findings=(
            finding(
                "error",
                HOSTILE,
                HOSTILE,
                what=HOSTILE,
                why=HOSTILE,
                remedy=HOSTILE,
            ),
        ),
        facts={HOSTILE: HOSTILE},
        blocks=(
            table,
            *(make(HOSTILE) for make in each),
            reports.Bars(
                title=HOSTILE, label=HOSTILE, labels=(HOSTILE,), values=(1.0,)
            ),
        ),
    )


def empty_document():
    """Returns a document with nothing in it, and blocks with nothing."""
    return reports.Document(
        title="",
        verdict="",
        blocks=(
            reports.Table(title="", columns=("a",), rows=()),
            reports.Bars(title="", label="", labels=(), values=()),
            reports.Lines(title="", x_label="", y_label="", x=(), series={}),
            reports.HeatMap(title="", label="", rows=(), columns=(), values=()),
            reports.ExponentHistogram(title="", exponents=(), series={}),
        ),
    )


DOCUMENTS = {
    "full": full_document,
    "hostile": hostile_document,
    "empty": empty_document,
}
