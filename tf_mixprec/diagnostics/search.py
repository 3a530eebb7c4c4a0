"""The search for what makes a step inf or nan."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tf_mixprec.diagnostics import culprit as phases
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.culprit import backward_culprit
from tf_mixprec.diagnostics.culprit import bad_variable
from tf_mixprec.diagnostics.culprit import forward_culprit
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.subject import Batch

Run = Callable[[float], StepRecord]


def found_in_step(run: Run, batch: Batch, scale: float) -> Culprit | None:
    """Returns what makes a step inf or nan; `None` if nothing does.

    ```text
    loss and gradients are finite: a variable with inf or nan, or nothing
    inputs or targets with inf or nan: these
    a trained variable with inf or nan: that
    the loss is not finite: the first such tensor of the forward pass, or the
      loss itself, if its inputs are finite
    gradients are finite with a loss scale of 1: the scale, at the first of them
    else: the first such tensor of the forward pass, or the first such gradient
    ```

    Statistics come last, since a bad step may have written them itself.

    Args:
        run: Makes the step with a given loss scale.
        batch: The batch of the step.
        scale: The loss scale.
    """
    step = run(scale)
    if np.isfinite(step.scaled_loss) and not step.found_inf:
        return bad_variable(step)
    found = bad_input(batch) or bad_variable(step, only_trained=True)
    if found is not None:
        return found
    if not np.isfinite(step.loss):
        return forward_culprit(step) or _of_loss(phases.LOSS, "loss", step.loss)
    unscaled = run(1.0) if scale != 1.0 else step
    if not unscaled.found_inf:
        return backward_culprit(step, phases.SCALE) or _of_loss(
            phases.SCALE, "scaled loss", step.scaled_loss
        )
    return forward_culprit(unscaled) or backward_culprit(
        unscaled, phases.BACKWARD
    )


def highest_finite_scale(run: Run, scale: float) -> float:
    """Returns the highest power of two with finite gradients, at most `scale`.

    Args:
        run: Makes the step with a given loss scale.
        scale: One with which they are not finite; with 1 they are.
    """
    low, high = 0, int(np.ceil(np.log2(scale)))
    while high - low > 1:
        middle = (low + high) // 2
        step = run(2.0**middle)
        is_finite = np.isfinite(step.scaled_loss) and not step.found_inf
        low, high = (middle, high) if is_finite else (low, middle)
    return 2.0**low


def bad_input(batch: Batch) -> Culprit | None:
    """Returns the first of inputs, targets and weights with inf or nan."""
    x, y, sample_weight = batch
    for phase, structure in (
        (phases.INPUT, x),
        (phases.TARGET, y),
        (phases.TARGET, sample_weight),
    ):
        for path, value in _leaves(structure):
            array = keras.ops.convert_to_numpy(value)
            if not keras.backend.is_float_dtype(str(array.dtype)):
                continue
            array = array.astype("float32")  # NumPy knows no bfloat16
            nan, inf = int(np.isnan(array).sum()), int(np.isinf(array).sum())
            if nan or inf:
                return Culprit(
                    phase=phase,
                    layer="",
                    layer_class="",
                    tensor=_words(phase, path, array),
                    dtype=keras.backend.standardize_dtype(value.dtype),
                    size=array.size,
                    nan=nan,
                    inf=inf,
                )
    return None


def _leaves(structure: Any) -> list[tuple[str, Any]]:
    return [
        ("/".join(map(str, path)), value)
        for path, value in keras.tree.flatten_with_path(structure)
        if value is not None
    ]


def _words(phase: str, path: str, array: np.ndarray) -> str:
    """Returns which input, and the first example that is bad."""
    bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    name = f"{phase} {path!r}" if path else phase
    return f"{name}, first in example {int(np.argmax(bad))} of the batch"


def _of_loss(phase: str, words: str, value: float) -> Culprit:
    return Culprit(
        phase=phase,
        layer="",
        layer_class="",
        tensor=words,
        dtype="float32",
        size=1,
        nan=int(np.isnan(value)),
        inf=int(np.isinf(value)),
    )
