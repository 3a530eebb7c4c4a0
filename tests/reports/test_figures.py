"""Figures, drawn by matplotlib."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest
from reports.documents import DOCUMENTS
from reports.documents import bars
from reports.documents import full_document
from reports.documents import heat_map
from reports.documents import histogram
from reports.documents import lines

from tf_mixprec import reports

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("matplotlib.pyplot")
figures = pytest.importorskip("tf_mixprec.reports.figures")

FIGURES = [
    pytest.param(block, id=f"{name}_{number}_{type(block).__name__}")
    for name, make in DOCUMENTS.items()
    for number, block in enumerate(make().blocks)
    if not isinstance(block, reports.Table)
]


@pytest.mark.parametrize("figure", FIGURES)
def test_the_svg_is_well_formed_and_the_same_each_time(figure):
    before = dict(matplotlib.rcParams)
    text = figures.svg(figure, "a-")
    assert text == figures.svg(figure, "a-")
    assert dict(matplotlib.rcParams) == before
    root = ElementTree.fromstring(text)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert all(each.startswith("a-") for each in ids)
    assert not re.search(r"<\?xml|<!DOCTYPE|<metadata|\d{4}-\d\d-\d\dT", text)
    assert figures._INK not in text


def test_pyplot_is_not_used():
    figures.pixels(bars())
    assert matplotlib.pyplot.get_fignums() == []


def axes_of(figure):
    return figures.drawn(figure).axes[0]


def test_bars_have_their_lengths_and_names():
    axes = axes_of(bars())
    assert [bar.get_width() for bar in axes.patches][2:] == [0.0, 1.0, 2.0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == [f"layer {n}" for n in range(5)]
    low, high = axes.get_ylim()
    assert low > high  # the first is on top
    assert axes.get_title() == "bars"


def test_of_many_bars_the_smallest_can_be_shown():
    figure = dataclasses.replace(bars(count=100), keeps_smallest=True)
    axes = axes_of(figure)
    assert len(axes.patches) == 40
    assert axes.patches[-1].get_width() == 39.0
    assert "larger ones are left out" in axes.get_xlabel()


def test_of_many_bars_the_largest_are_shown():
    axes = axes_of(bars(count=100))
    assert len(axes.patches) == 40
    assert axes.patches[-1].get_width() == 99.0
    assert "62 smaller ones are left out" in axes.get_xlabel()


def test_lines_have_gaps_marks_and_scales():
    axes = axes_of(lines(log_x=True, log_y=True))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (first, *_) = axes.get_lines()
    assert list(first.get_ydata())[::2] == [1.0, 4.0]
    texts = [text.get_text() for text in axes.texts]
    assert texts == [r"skip \$", "largest"]
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [each.strip() for each in named] == ["first", "_second"]


def test_a_heat_map_has_a_color_bar_and_names_the_infinite():
    canvas = figures.drawn(heat_map())
    axes, color_bar = canvas.axes
    assert color_bar.get_ylabel() == "share"
    assert [text.get_text() for text in axes.texts] == ["inf"]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["a", "b"]


def test_bands_in_sight_are_named():
    axes = axes_of(histogram())
    assert [text.get_text() for text in axes.texts] == ["low"]
    assert axes.get_xlim() == (-3.5, -0.5)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_the_same_each_time(tmp_path, suffix):
    for name in ("a", "b"):
        figures.save_picture(bars(), tmp_path / f"{name}.{suffix}")
    first = (tmp_path / f"a.{suffix}").read_bytes()
    assert first == (tmp_path / f"b.{suffix}").read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_pixels_are_on_white():
    pixels = figures.pixels(bars())
    assert pixels.dtype == "uint8"
    assert tuple(pixels[0, 0]) == (255, 255, 255, 255)


def test_what_is_no_figure_is_refused():
    (table, *_) = full_document().blocks
    with pytest.raises(TypeError, match="must be one of the figures"):
        figures.plots.draw(table, None)
