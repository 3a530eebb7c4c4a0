"""What `mp.compile` did."""

import dataclasses
from collections.abc import Mapping

_SHOWN = 3  # layers in a line


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileReport:
    """What `mp.compile` did. Printed, it is a few lines.

    Args:
        optimizers: What became of each optimizer, by argument: `"wrapped"`
            (dynamic loss scale), `"skips"` (no loss scale, non-finite steps are
            skipped), `"fixed"` (its own `loss_scale_factor`), `"converted"`
            (Keras's wrapper), `"kept"` (wrapped already) or `"as given"`.
        float16_layers: Paths of layers that compute in float16 or return it.
        bfloat16_layers: Paths of layers in bfloat16.
        jit_compile: Whether XLA compiles the steps.
        metrics_cast: Whether 16-bit predictions are cast to float32 for losses
            and metrics, and added losses for their sum.
        safe_skip: Whether a skipped step leaves no trace.
        autocast: The dtype that the model is under autocast in; `None` for no
            autocast.
        widened_regularizers: Paths of layers of which regularizers now compute
            in float32.
        reasons: Why, one line each.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [keras.Input((4,)), keras.layers.Dense(1, dtype="mixed_bfloat16")]
    ... )
    >>> mp.compile(model, "sgd", "mse").optimizers
    {'optimizer': 'skips'}
    """

    optimizers: Mapping[str, str]
    float16_layers: tuple[str, ...]
    bfloat16_layers: tuple[str, ...]
    jit_compile: bool
    metrics_cast: bool
    safe_skip: bool
    autocast: str | None
    widened_regularizers: tuple[str, ...]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """One line for each thing, and the reasons."""
        lines = [f"{name}: {word}" for name, word in self.optimizers.items()]
        lines += [
            f"float16 layers: {_listed(self.float16_layers)}",
            f"bfloat16 layers: {_listed(self.bfloat16_layers)}",
            f"jit_compile: {self.jit_compile}",
            "losses and metrics: "
            + ("cast to float32" if self.metrics_cast else "as in Keras"),
        ]
        if self.autocast:
            lines.append(f"autocast: {self.autocast}")
        if self.safe_skip:
            lines.append("skipped steps: leave no trace")
        if self.widened_regularizers:
            names = _listed(self.widened_regularizers)
            lines.append(f"regularizers in float32: {names}")
        return "\n".join([*lines, *(f"- {each}" for each in self.reasons)])


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
