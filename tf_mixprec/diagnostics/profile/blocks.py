"""Tables and figures of a profile."""

from tf_mixprec.diagnostics.profile.records import Measured
from tf_mixprec.diagnostics.profile.records import Variant
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Table
from tf_mixprec.reports.document import Block


def blocks(measured: Measured) -> tuple[Block, ...]:
    """Returns what there is to show of what was measured.

    Args:
        measured: The times.
    """
    variants = measured.variants
    return (
        _steps(variants),
        _ratio_bars(variants),
        _parts(variants),
        _part_bars(variants),
        _ops(variants),
        _casts(variants),
        *(_products(measured) if measured.ceiling else ()),
        *(_batches(measured) if measured.batches else ()),
    )


def _steps(variants: tuple[Variant, ...]) -> Table:
    return Table(
        title="Time of a training step",
        columns=("precision", "ms", "ratio", "10 %", "90 %"),
        rows=tuple(
            (v.label, v.step_ms, v.ratio, v.ratio_p10, v.ratio_p90)
            for v in variants
        ),
        note=(
            f"Ratios are by the time of {variants[0].label} in the same round: "
            "their median, and the quantiles of all rounds."
        ),
    )


def _ratio_bars(variants: tuple[Variant, ...]) -> Bars:
    return Bars(
        title="Time of a training step",
        label=f"by that of {variants[0].label}",
        labels=tuple(v.label for v in variants),
        values=tuple(v.ratio for v in variants),
        bounds={"equal": 1.0},
    )


def _parts(variants: tuple[Variant, ...]) -> Table:
    return Table(
        title="Parts of a step",
        columns=(
            "precision",
            "forward, ms",
            "backward, ms",
            "optimizer, ms",
            "optimizer, share",
        ),
        rows=tuple(
            (
                v.label,
                v.forward_ms,
                v.backward_ms,
                v.optimizer_ms,
                f"{v.optimizer_share:.0%}",
            )
            for v in variants
        ),
        note=(
            "Of three functions, the loss, the loss with gradients, and the "
            "step: medians of the differences in each round; 0 where noise "
            "makes that negative."
        ),
    )


def _part_bars(variants: tuple[Variant, ...]) -> Bars:
    labels, values = [], []
    for v in variants:
        for part in ("forward", "backward", "optimizer"):
            labels.append(f"{v.label}, {part}")
            values.append(getattr(v, f"{part}_ms"))
    return Bars(
        title="Parts of a step",
        label="ms",
        labels=tuple(labels),
        values=tuple(values),
    )


def _ops(variants: tuple[Variant, ...]) -> Table:
    rows = []
    for v in variants:
        times = v.op_times.milliseconds if v.op_times else {}
        for dtype in {**v.graph.ops, **times}:
            rows.append(
                (v.label, dtype, v.graph.ops.get(dtype), times.get(dtype))
            )
    return Table(
        title="Operations of forward and backward pass, by dtype",
        columns=("precision", "dtype", "operations", "ms"),
        rows=tuple(rows),
        note="Times are those of threads, which overlap; XLA and GPUs have "
        "none.",
    )


def _casts(variants: tuple[Variant, ...]) -> Table:
    return Table(
        title="Casts to or from 16 bits",
        columns=("precision", "casts", "MiB", "share of the operations' time"),
        rows=tuple(
            (
                v.label,
                v.graph.casts,
                v.graph.cast_bytes / 2**20,
                f"{v.op_times.cast_share:.1%}" if v.op_times else None,
            )
            for v in variants
        ),
    )


def _products(measured: Measured) -> tuple[Block, ...]:
    rows = []
    for v in measured.variants:
        for dtype, count in v.graph.multiply_adds.items():
            speed = measured.ceiling.get(dtype)
            rows.append(
                (
                    v.label,
                    dtype,
                    count,
                    speed / 1e9 if speed else None,
                    count / speed * 1e3 if speed else None,
                    v.step_ms,
                )
            )
    return (
        Table(
            title="Multiply-adds of matrix products and convolutions",
            columns=(
                "precision",
                "dtype",
                "a step",
                "1e9 a second at the ceiling",
                "ms at the ceiling",
                "ms of the step",
            ),
            rows=tuple(rows),
            note="The ceiling is the product of two large matrices here.",
        ),
        Bars(
            title="Share of the speed of large matrix products",
            label="time at the ceiling by that of the step",
            labels=tuple(v.label for v in measured.variants),
            values=tuple(v.ceiling_share for v in measured.variants),
            bounds={"ceiling": 1.0},
        ),
    )


def _batches(measured: Measured) -> tuple[Block, ...]:
    batches = measured.batches
    return (
        Table(
            title=f"Batches of {measured.batches_of}",
            columns=("examples", "ms", "examples a second", "of the ceiling"),
            rows=tuple(
                (
                    b.batch_size,
                    b.step_ms,
                    b.examples_per_second,
                    b.ceiling_share,
                )
                for b in batches
            ),
        ),
        Bars(
            title=f"Batches of {measured.batches_of}",
            label="examples a second",
            labels=tuple(str(b.batch_size) for b in batches),
            values=tuple(b.examples_per_second for b in batches),
        ),
    )
