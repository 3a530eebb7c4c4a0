"""What is averaged over the good steps of an epoch, on the device."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Variable


class StepTotals:
    """Means over steps that were not skipped, and the number of the others.

    Args:
        names: Of the scalars besides the norm of the gradients.
    """

    def __init__(self, names: Sequence[str]):
        self._means = {
            name: keras.metrics.Mean(name) for name in ("grad_norm", *names)
        }
        self._skipped = keras.metrics.Mean("skipped")

    def add(self, outcome: Any) -> None:
        """Counts a step on this replica.

        Args:
            outcome: An `Outcome`.
        """
        good = ops.logical_not(outcome.skipped)
        values = {**outcome.means, "grad_norm": outcome.grad_norm}
        for name, mean in self._means.items():
            value = values[name]
            mean.update_state(
                ops.where(good, value, 0.0),
                sample_weight=ops.cast(good, "float32"),
            )
        self._skipped.update_state(ops.cast(outcome.skipped, "float32"))

    def reset(self) -> None:
        """Starts an epoch."""
        for mean in (*self._means.values(), self._skipped):
            mean.reset_state()

    @property
    def variables(self) -> list[Variable]:
        """What they are kept in, for checkpoints."""
        means = (*self._means.values(), self._skipped)
        return [variable for mean in means for variable in mean.variables]

    def read(self) -> dict[str, float]:
        """Returns the means, and `skipped`. Waits for the device."""
        share = number(self._skipped.result())
        steps = number(self._skipped.count)
        return {
            **{
                name: number(mean.result())
                if number(mean.count)
                else float("nan")
                for name, mean in self._means.items()
            },
            "skipped": round(share * steps),
        }


def number(value: Any) -> float:
    """Returns a scalar tensor or variable as a float. Waits for the device."""
    return float(ops.convert_to_numpy(value))
