"""How each kind of figure is drawn on the axes of matplotlib."""

import functools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np

from tf_mixprec.reports.cells import cell_text
from tf_mixprec.reports.cells import one_line
from tf_mixprec.reports.document import Bars
from tf_mixprec.reports.document import ExponentHistogram
from tf_mixprec.reports.document import Figure
from tf_mixprec.reports.document import HeatMap
from tf_mixprec.reports.document import Lines

# Okabe and Ito's, which color-blind people tell apart.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_STYLES = ("-", "--", ":", "-.")
_GRAY = "#8A8F98"
_MOST_BARS = 40
_MOST_ROWS = 60
_MOST_LETTERS = 36
_WIDTH = 7.2  # inches
_ROW = 0.24  # inches that a row needs to have a name


def plain(text: str, most: int | None = None) -> str:
    """Returns a text as matplotlib shows it unchanged: `$` starts no formula.

    Args:
        text: The text.
        most: How many letters it may have; more lose their middle.
    """
    text = one_line(text)
    if most is not None and len(text) > most:
        half = (most - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text.replace("$", r"\$")


def size_of(figure: Figure) -> tuple[float, float]:
    """Returns width and height in inches."""
    if isinstance(figure, Bars):
        rows = min(len(figure.labels), _MOST_BARS)
        return _WIDTH, 1.1 + _ROW * max(rows, 2)
    if isinstance(figure, HeatMap):
        rows = min(len(figure.rows), _MOST_ROWS)
        return _WIDTH, 1.5 + _ROW * max(rows, 3)
    return _WIDTH, 3.4


@functools.singledispatch
def draw(figure: Any, axes: Any) -> None:
    """Draws a figure.

    Args:
        figure: What to draw.
        axes: Empty axes of matplotlib.
    """
    raise TypeError(
        "`figure` must be one of the figures of `reports.document`, because "
        f"each has its own drawing. Received: figure={figure!r}"
    )


@draw.register
def _(figure: Lines, axes: Any) -> None:
    handles = []
    for number, values in enumerate(figure.series.values()):
        handles += axes.plot(
            figure.x,
            _finite(values),
            color=_COLORS[number % len(_COLORS)],
            linestyle=_STYLES[number // len(_COLORS) % len(_STYLES)],
            marker="o" if len(figure.x) <= 40 else None,
            markersize=3,
        )
    if figure.log_x:
        axes.set_xscale("log", base=2)
    else:
        axes.xaxis.set_major_formatter(_short_number)
        if all(isinstance(each, int) for each in figure.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
    if figure.log_y:
        axes.set_yscale("log", base=2)
    else:
        axes.yaxis.set_major_formatter(_short_number)
        _start_at_zero(axes, figure)
    _mark(axes, figure.marks, figure.bounds)
    _name(axes, figure.x_label, figure.y_label)
    _legend(axes, handles, tuple(figure.series))


@draw.register
def _(figure: Bars, axes: Any) -> None:
    values = _finite(figure.values)
    sizes = -values if figure.keeps_smallest else np.abs(values)
    shown = _largest(sizes, _MOST_BARS)
    places = np.arange(len(shown))
    axes.barh(places, values[shown], color=_COLORS[0], height=0.7)
    labels = [plain(figure.labels[index], _MOST_LETTERS) for index in shown]
    axes.set_yticks(places, labels, fontsize="small")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _mark(axes, figure.bounds, {})
    left_out = len(values) - len(shown)
    others = "larger" if figure.keeps_smallest else "smaller"
    label = figure.label + (
        f"; {left_out} {others} ones are left out" if left_out else ""
    )
    _name(axes, label, "")
    axes.xaxis.set_major_formatter(_short_number)
    axes.grid(axis="x", color=_GRAY, alpha=0.3, linewidth=0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


@draw.register
def _(figure: HeatMap, axes: Any) -> None:
    shape = (len(figure.rows), len(figure.columns))
    values = np.reshape([_finite(row) for row in figure.values], shape)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if not values.size:
        return
    colors = matplotlib.colormaps["viridis"].with_extremes(bad=_GRAY)
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    image = axes.imshow(values, aspect="auto", cmap=colors, vmin=low, vmax=high)
    _ticks(axes.set_yticks, figure.rows, _MOST_ROWS)
    _ticks(axes.set_xticks, figure.columns, 16, rotation=35, ha="right")
    bar = axes.figure.colorbar(image, ax=axes, label=plain(figure.label))
    bar.outline.set_visible(False)
    _name_the_infinite(axes, figure)


@draw.register
def _(figure: ExponentHistogram, axes: Any) -> None:
    handles = []
    for number, shares in enumerate(figure.series.values()):
        color = _COLORS[number % len(_COLORS)]
        handles += axes.step(
            figure.exponents, _finite(shares), where="mid", color=color
        )
        axes.fill_between(
            figure.exponents,
            _finite(shares),
            step="mid",
            color=color,
            alpha=0.25,
            linewidth=0,
        )
    if figure.exponents:
        axes.set_xlim(figure.exponents[0] - 0.5, figure.exponents[-1] + 0.5)
        _shade(axes, figure)
    axes.set_ylim(bottom=0)
    _name(axes, "exponent of two", "share of values")
    _legend(axes, handles, tuple(figure.series))


def _shade(axes: Any, figure: ExponentHistogram) -> None:
    """Shades the bands that are in sight, with their names on top."""
    low, high = axes.get_xlim()
    shown = {
        name: (max(first - 0.5, low), min(last + 0.5, high))
        for name, (first, last) in figure.bands.items()
        if first <= high and last >= low
    }
    for number, (name, (first, last)) in enumerate(shown.items()):
        axes.axvspan(
            first,
            last,
            facecolor=_GRAY,
            alpha=(0.28, 0.14)[number % 2],
            linewidth=0,
            zorder=0,
        )
        axes.annotate(
            plain(name, _MOST_LETTERS),
            ((first + last) / 2, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 3 + 11 * (number % 2)),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize="small",
        )


def _start_at_zero(axes: Any, figure: Lines) -> None:
    """Leaves out what is below 0 where no value is, and one is 0."""
    values = [v for each in figure.series.values() for v in _finite(each)]
    known = np.array([each for each in values if math.isfinite(each)])
    if known.size and known.min() == 0:
        axes.set_ylim(bottom=0)


def _mark(
    axes: Any, vertical: Mapping[str, float], horizontal: Mapping[str, float]
) -> None:
    """Draws lines at places of either axis, and their names beside them."""
    for name, place in vertical.items():
        axes.axvline(place, color=_COLORS[3], linestyle="--", linewidth=1)
        axes.annotate(
            plain(name, _MOST_LETTERS),
            (place, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, -3),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize="small",
        )
    for name, place in horizontal.items():
        axes.axhline(place, color=_GRAY, linestyle="--", linewidth=1)
        axes.annotate(
            plain(name, _MOST_LETTERS),
            (1.0, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )


def _name_the_infinite(axes: Any, figure: HeatMap) -> None:
    """Writes inf and nan in their cells, which have no color."""
    for row, values in enumerate(figure.values):
        for column, value in enumerate(values):
            if value is not None and not math.isfinite(value):
                axes.text(
                    column,
                    row,
                    cell_text(value),
                    ha="center",
                    va="center",
                    fontsize="x-small",
                )


def _ticks(
    set_ticks: Any, names: Sequence[str], most: int, **options: Any
) -> None:
    """Names as many rows or columns as there is room for."""
    places = range(0, len(names), -(-len(names) // most))
    labels = [plain(names[place], _MOST_LETTERS) for place in places]
    set_ticks(list(places), labels, fontsize="small", **options)


def _name(axes: Any, x_label: str, y_label: str) -> None:
    axes.set_xlabel(plain(x_label))
    axes.set_ylabel(plain(y_label))
    axes.spines[["top", "right"]].set_visible(False)


def _short_number(value: float, _: Any = None) -> str:
    """Returns a number for an axis, such as 1.2M."""
    for suffix, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= unit * 10 or (suffix != "k" and abs(value) >= unit):
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"


def _legend(axes: Any, handles: list[Any], names: tuple[str, ...]) -> None:
    if len(names) < 2 and not any(names):
        return
    # A label that starts with an underscore would be left out.
    labels = [f" {plain(name, _MOST_LETTERS)}" for name in names]
    axes.legend(
        handles,
        labels,
        frameon=False,
        fontsize="small",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )


def _finite(values: Sequence[float | None]) -> Any:
    """Returns an array, with nan where there is nothing to draw."""
    array = np.array(
        [math.nan if each is None else float(each) for each in values], float
    )
    return np.where(np.isfinite(array), array, math.nan)


def _largest(values: Any, most: int) -> Any:
    """Returns the indices of the largest, in their order; nan is the least."""
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
    return np.sort(order[:most])
