"""What there is to show of a result: a verdict, findings, tables, figures.

Plain data and no rendering. Text, Markdown, HTML and the rest are made of it
elsewhere in this folder, and know nothing else of what they show.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

ERROR = "error"
WARNING = "warning"
INFO = "info"
LEVELS = (ERROR, WARNING, INFO)  # the worst first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a user should know, and what to do about it.

    Args:
        level: `"error"`: it harms training; `"warning"`: it can, or it costs
            time; `"info"`: it is as it should be, and good to know.
        code: A short name that does not change, such as `"underflow"`.
        layer: The path of the layer; empty for the whole model.
        what: What was found, a sentence with its number.
        why: Why that matters, a sentence.
        remedy: What to change, a sentence.
        value: The number in `what`, for programs.
    """

    level: str
    code: str
    layer: str
    what: str
    why: str
    remedy: str
    value: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under named columns.

    Args:
        title: What it shows.
        columns: A name for each column.
        rows: The cells: strings, numbers, or `None` for an empty one.
        note: What a reader must know to read it; can be empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over a common axis.

    Args:
        title: What it shows.
        x_label: The quantity along x, with its unit.
        y_label: The quantity along y, with its unit.
        x: The places.
        series: By name, a value for each place; `None` for a gap.
        marks: By name, places on x with a vertical line.
        bounds: By name, values of y with a horizontal line.
        log_x: Whether x is shown in powers of two.
        log_y: Whether y is shown in powers of two.
    """

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]
    marks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars:
    """A bar for each label, from top to bottom.

    Args:
        title: What it shows.
        label: The quantity, with its unit.
        labels: A name for each bar.
        values: Its length; `None` for no bar.
        bounds: By name, values with a vertical line.
        keeps_smallest: Whether of too many bars the smallest are drawn, and
            not the largest.
    """

    title: str
    label: str
    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    keeps_smallest: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A color for each pair of a row and a column.

    Args:
        title: What it shows.
        label: The quantity, with its unit.
        rows: Names, from top to bottom.
        columns: Names, from left to right.
        values: For each row a value for each column; `None` for none.
    """

    title: str
    label: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentHistogram:
    """How many values have each binary exponent.

    Args:
        title: What it shows.
        exponents: Floors of log2 of magnitudes, ascending by 1.
        series: By name, the share of values with each exponent, from 0 to 1.
        bands: By name, the first and the last exponent of a range to shade,
            such as where float16 is subnormal.
    """

    title: str
    exponents: tuple[int, ...]
    series: Mapping[str, tuple[float, ...]]
    bands: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=dict
    )


Figure: TypeAlias = Lines | Bars | HeatMap | ExponentHistogram
Block: TypeAlias = Table | Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """A result as its reader sees it.

    Args:
        title: What was done, to what.
        verdict: The result in one sentence.
        findings: The worst first.
        facts: By name, what the result holds for: policy, batch, machine.
        blocks: Tables and figures, in their order.
    """

    title: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
