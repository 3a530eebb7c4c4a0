"""Which optimizer a model in 16 bits needs."""

from typing import Any

import keras

from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import wrap
from tf_mixprec.training.sixteen_bits import SixteenBitLayers


class OptimizerChoice:
    """Wraps optimizers for a model, and notes what became of each.

    Args:
        found: The layers of the model that work in 16 bits.
        wraps_all: Whether a model without such layers skips steps too.
    """

    def __init__(self, found: SixteenBitLayers, *, wraps_all: bool = False):
        self._wraps_all = wraps_all
        self.done: dict[str, str] = {}
        self.float16 = bool(found.float16)
        self._found = found
        # An optimizer that is given twice must not be wrapped twice.
        self._wrapped: dict[int, tuple[Any, str]] = {}

    def chosen(self, name: str, optimizer: Any) -> Any:
        """Returns the optimizer for the model.

        Args:
            name: The argument it is given as.
            optimizer: Anything that `mp.wrap` takes, or `None`.
        """
        if optimizer is None:
            return None
        if not self._found and not self._wraps_all:
            self.done[name] = "as given"
            return optimizer
        key = id(optimizer)
        if key not in self._wrapped:
            self._wrapped[key] = self._choose(optimizer)
        result, self.done[name] = self._wrapped[key]
        return result

    def chosen_inside(self, name: str, value: Any) -> Any:
        """Returns an argument with the optimizers in it chosen.

        Args:
            name: The argument.
            value: An optimizer, dicts, lists and tuples of them, or anything
                else, which is returned as it is.
        """
        if isinstance(value, keras.optimizers.Optimizer):
            return self.chosen(name, value)
        if type(value) is dict:
            return {
                key: self.chosen_inside(f"{name}/{key}", each)
                for key, each in value.items()
            }
        if type(value) in (list, tuple):
            return type(value)(
                self.chosen_inside(f"{name}/{index}", each)
                for index, each in enumerate(value)
            )
        return value

    @property
    def keeps_masters(self) -> bool:
        """Whether every optimizer updates 16-bit variables in float32."""
        return bool(self._wrapped) and all(
            wrapped.updates_in_float32 for wrapped, _ in self._wrapped.values()
        )

    def reasons(self) -> list[str]:
        """Returns why, one line each."""
        words = set(self.done.values())
        return [text for word, text in _REASONS.items() if word in words]

    def _choose(self, optimizer: Any) -> tuple[LossScaleOptimizer, str]:
        wrapped = wrap(optimizer)
        if wrapped is optimizer:
            return wrapped, "kept"
        if _scales_already(optimizer):
            return wrapped, "converted"
        if not wrapped.dynamic:
            return wrapped, "fixed"
        if self.float16:
            return wrapped, "wrapped"
        inner_optimizer = wrapped.inner_optimizer
        # Skips steps that are not finite, and scales nothing.
        return wrap(inner_optimizer, dynamic=False, initial_scale=1.0), "skips"


_REASONS = {
    "wrapped": "float16 gradients below 6e-8 are zero: the loss is scaled.",
    "skips": (
        "No gradient is float16: the loss is not scaled, steps that are not "
        "finite are skipped."
    ),
    "fixed": "`loss_scale_factor` is kept as a fixed loss scale.",
    "converted": "Keras's LossScaleOptimizer is converted, with its scale.",
    "kept": "The optimizer is wrapped already.",
}


def _scales_already(optimizer: Any) -> bool:
    if isinstance(optimizer, dict):
        return str(optimizer["class_name"]).startswith("LossScaleOptimizer")
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
