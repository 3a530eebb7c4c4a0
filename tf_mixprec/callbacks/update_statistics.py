"""The weights of a model before and after a step, compared on the device."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.diagnostics.update_statistics import COLUMNS
from tf_mixprec.diagnostics.update_statistics import statistics
from tf_mixprec.optimizers.master_weight_optimizer import MasterWeightOptimizer

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class UpdateMeter:
    """Compares the variables of a model before and after a step.

    Args:
        optimizer: The `mp.LossScaleOptimizer`, whose steps note the masks.
        variables: The variables to compare; masters in their place where there
            are.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Variable]):
        self._optimizer = optimizer
        self._variables = variables
        self._masks = [optimizer.notes.masks.of(each) for each in variables]
        self._values = tf.function(self._values_now, autograph=False)
        self._compared = tf.function(self._compared_with, autograph=False)
        self._before: Any = None

    def is_of(self, optimizer: Any, variables: Sequence[Variable]) -> bool:
        """Returns whether this is for an optimizer and variables."""
        ids = [id(each) for each in variables]
        return self._optimizer is optimizer and ids == [
            id(each) for each in self._variables
        ]

    def begin(self) -> None:
        """Keeps the values there are, on the device."""
        self._before = self._values()

    def end(self) -> tuple[int, Any] | None:
        """Returns the number of the step and its statistics.

        Waits for the device: one tensor comes from there.

        Returns:
            An int, and an array with a row of `COLUMNS` for each variable, the
            shares as counts; `None` if the step was skipped.
        """
        before, self._before = self._before, None
        table = keras.ops.convert_to_numpy(self._compared(*before))
        steps_before, steps_after = table[-1, :2]
        if steps_before == steps_after:
            return None
        return int(steps_after), table[:-1]

    def _values_now(self) -> tuple[list[Tensor], Tensor]:
        inner = self._optimizer.inner_optimizer
        has_masters = isinstance(inner, MasterWeightOptimizer)
        values = [
            inner.master_of(each) if has_masters else each.value
            for each in self._variables
        ]
        steps = tf.convert_to_tensor(self._optimizer.iterations)
        return [tf.convert_to_tensor(each) for each in values], steps

    def _compared_with(self, before: list[Tensor], steps: Tensor) -> Tensor:
        now, steps_now = self._values_now()
        rows = [
            statistics(old, new, tf.convert_to_tensor(mask))
            for old, new, mask in zip(before, now, self._masks, strict=True)
        ]
        both = tf.cast(tf.stack([steps, steps_now]), tf.float64)
        padding = tf.zeros([len(COLUMNS) - 2], tf.float64)
        return tf.stack([*rows, tf.concat([both, padding], axis=0)])
