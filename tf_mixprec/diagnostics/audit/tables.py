"""How an audit is shown: its tables and figures."""

from collections.abc import Mapping
from collections.abc import Sequence

from tf_mixprec.diagnostics.audit.layers import AuditedLayer
from tf_mixprec.reports import Bars
from tf_mixprec.reports import Table


def dtype_table(multiply_adds: Mapping[str, float]) -> Table:
    """Returns the multiply-adds of an example by dtype."""
    total = sum(multiply_adds.values()) or 1.0
    return Table(
        title="Multiply-adds by dtype",
        columns=("dtype", "for an example", "share"),
        rows=tuple(
            (dtype, count, f"{count / total:.1%}")
            for dtype, count in multiply_adds.items()
        ),
        note="Of matrix products and convolutions, in the forward pass.",
    )


def layer_table(layers: Sequence[AuditedLayer]) -> Table:
    """Returns what is known of each layer."""
    return Table(
        title="Layers",
        columns=(
            "layer",
            "class",
            "policy",
            "computes in",
            "variables",
            "parameters",
            "multiply-adds",
            "casts",
            "bytes cast",
            "weight bytes cast",
        ),
        rows=tuple(
            (
                each.path,
                each.layer_class,
                each.policy,
                each.compute_dtype,
                each.variable_dtype,
                each.parameters,
                each.multiply_adds,
                each.casts,
                each.cast_bytes,
                each.weight_cast_bytes,
            )
            for each in layers
        ),
        note=(
            "Multiply-adds and bytes cast are for an example, bytes of weights "
            "for a batch; empty where they are not known."
        ),
    )


def bars(
    layers: Sequence[AuditedLayer], field: str, title: str, label: str
) -> Bars:
    """Returns a bar for each layer where a field is not 0 or unknown."""
    shown = [each for each in layers if getattr(each, field)]
    return Bars(
        title=title,
        label=label,
        labels=tuple(
            f"{each.path} ({each.compute_dtype})"
            if each.compute_dtype
            else each.path
            for each in shown
        ),
        values=tuple(getattr(each, field) for each in shown),
    )
