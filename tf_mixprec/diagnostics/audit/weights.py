"""What an audit finds in the values of variables; each is read once."""

from collections.abc import Iterator
from typing import Any

import keras
import ml_dtypes
import numpy as np

from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.layers import is_narrow
from tf_mixprec.diagnostics.audit.layers import own_variables
from tf_mixprec.diagnostics.audit.layers import shown_path
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.policies import kinds
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import Finding


def findings(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what is wrong with the values of variables, by layer."""
    for each in facts.layers:
        bad: dict[str, tuple[int, int]] = {}
        amax = 0.0
        for variable in own_variables(each, facts.layers):
            if not keras.backend.is_float_dtype(variable.dtype):
                continue
            values = keras.ops.convert_to_numpy(variable)
            finite = np.isfinite(values)
            count = values.size - np.count_nonzero(finite)
            if count:
                bad[variable.name] = count, values.size
            if _casts_weights(each.layer):
                amax = max(amax, _amax(values, finite))
        if bad:
            yield _nonfinite(each, bad)
        if amax:
            yield from _overflow(each, amax)


def _nonfinite(layer: TappedLayer, bad: dict[str, tuple[int, int]]) -> Finding:
    counts = [f"{n:,} of {size:,} in {name}" for name, (n, size) in bad.items()]
    return Finding(
        level=ERROR,
        code="nonfinite-weight",
        layer=shown_path(layer.path),
        what=f"Values of its variables are inf or nan: {', '.join(counts)}.",
        why="All that is computed with them is inf or nan, in any dtype.",
        remedy=(
            "Load a checkpoint from before; `mp.find_nonfinite` with a batch "
            "of that time says where inf or nan comes from."
        ),
        value=sum(count for count, _ in bad.values()),
    )


def _overflow(layer: TappedLayer, amax: float) -> Iterator[Finding]:
    dtype = layer.compute_dtype
    if amax > float(ml_dtypes.finfo(dtype).max):
        yield Finding(
            level=ERROR,
            code="weight-overflows",
            layer=shown_path(layer.path),
            what=f"A weight of magnitude {amax:.3g} is inf in {dtype}.",
            why="The layer computes with weights cast to its dtype.",
            remedy="Compute this layer in float32 or bfloat16.",
            value=amax,
        )


def _casts_weights(layer: Any) -> bool:
    """Returns whether weights are cast; normalization keeps float32."""
    return is_narrow(layer) and kinds.kind_of(layer) != "normalization"


def _amax(values: np.ndarray, finite: np.ndarray) -> float:
    # In the dtype of the values: float64 has larger ones than float32.
    return float(np.abs(values[finite]).max(initial=0))
