"""Figures of a document as matplotlib figures, SVG and files.

matplotlib is needed to import this module. Nothing here uses `pyplot` or
leaves a setting of matplotlib changed.
"""

import io
import pathlib
import re
import warnings
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from tf_mixprec.reports import plots
from tf_mixprec.reports.document import Figure

# A color that nothing else has, for what a page draws in its own.
_INK = "#010203"
_NOT_IN_A_PAGE = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL
)
_NAMES = re.compile(r'(\sid="|href="#|url\(#)')


def drawn(figure: Figure, *, ink: str = "black", title: bool = True) -> Canvas:
    """Returns a matplotlib figure.

    Args:
        figure: What to draw.
        ink: The color of texts and axes.
        title: Whether the title is part of it.
    """
    canvas = Canvas(figsize=plots.size_of(figure), layout="constrained")
    canvas.patch.set_alpha(0.0)
    axes = canvas.add_subplot()
    axes.patch.set_alpha(0.0)
    plots.draw(figure, axes)
    if title:
        # Names of bands are above the axes.
        pad = 30 if getattr(figure, "bands", None) else None
        axes.set_title(plots.plain(figure.title), pad=pad)
    _color(canvas, ink)
    return canvas


def svg(figure: Figure, prefix: str = "") -> str:
    """Returns an `<svg>` element to put in a page, without a title.

    The same figure gives the same text. Texts and axes have the color of the
    text around it.

    Args:
        figure: What to draw.
        prefix: What the ids start with: another one for each figure of a page.
    """
    file = io.StringIO()
    settings: Any = {"svg.hashsalt": "tf_mixprec", "svg.fonttype": "none"}
    with matplotlib.rc_context(settings):
        _save(
            drawn(figure, ink=_INK, title=False),
            file,
            format="svg",
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    text = _NOT_IN_A_PAGE.sub("", file.getvalue()).strip()
    text = _NAMES.sub(rf"\g<1>{prefix}", text)
    return text.replace(_INK, "currentColor")


def pixels(figure: Figure) -> Any:
    """Returns a picture on white as a uint8 array (height, width, 4)."""
    canvas = FigureCanvasAgg(_on_white(figure))
    _quietly(canvas.draw)
    return np.asarray(canvas.buffer_rgba())


def save_picture(figure: Figure, path: str | pathlib.Path) -> None:
    """Writes a figure on white to a file, such as for the docs.

    Args:
        figure: What to draw.
        path: Ends in `.png` or `.svg`.
    """
    path = pathlib.Path(path)
    dates = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "tf_mixprec"}):
        _save(_on_white(figure), path, dpi=150, metadata=dates)


def _on_white(figure: Figure) -> Canvas:
    canvas = drawn(figure)
    canvas.patch.set(alpha=1.0, facecolor="white")
    return canvas


def _color(canvas: Canvas, ink: str) -> None:
    """Colors what the theme decides: texts, ticks, frames."""
    for axes in canvas.axes:
        axes.tick_params(which="both", color=ink, labelcolor=ink)
        for part in (axes.xaxis.label, axes.yaxis.label, axes.title):
            part.set_color(ink)
        for spine in axes.spines.values():
            spine.set_edgecolor(ink)
        for text in axes.texts:
            text.set_color(ink)
        if legend := axes.get_legend():
            for text in legend.get_texts():
                text.set_color(ink)


def _save(canvas: Canvas, file: Any, **options: Any) -> None:
    _quietly(canvas.savefig, file, **options)


def _quietly(function: Any, *args: Any, **kwargs: Any) -> None:
    """Calls without warnings: of glyphs that a font lacks, of empty axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(*args, **kwargs)
