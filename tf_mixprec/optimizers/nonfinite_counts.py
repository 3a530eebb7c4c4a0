"""How often the gradient of each variable was inf or nan."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec import numerics
from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers.noted_variables import noted
from tf_mixprec.optimizers.noted_variables import on_this_replica

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class NonfiniteCounts:
    """One counter for each variable, and one for the floor, on the device.

    Args:
        variables: The variables that an optimizer updates.
        key_of: Returns what the optimizer knows a variable by.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        key_of: Callable[[Variable], Any],
    ):
        self._paths = _distinct(
            [getattr(variable, "path", variable.name) for variable in variables]
        )
        self._key_of = key_of
        self._index = {key_of(v): index for index, v in enumerate(variables)}
        # Of 64 bits on TensorFlow: a GPU holds no int32 variable.
        self._counts = noted((len(self._paths),), "int", "nonfinite_counts")
        self._skipped_at_floor = noted((), "int", "skipped_at_floor")

    def reset(self) -> None:
        """Starts at 0 again, from outside of the replicas."""
        for variable in (self._counts, self._skipped_at_floor):
            variable.assign(ops.zeros_like(variable))

    def add_if(self, found_inf: Tensor, flags: Callable[[], Tensor]) -> None:
        """Counts a step.

        Args:
            found_inf: Scalar bool tensor: whether any gradient is inf or nan.
            flags: Returns which are: a bool for each counter, the same on
                every replica.
        """
        if gradient_lists.sees_gpu():  # where a branch waits for the host
            self.add(flags())
        else:
            tf.cond(found_inf, lambda: self.add(flags()), lambda: None)

    def add(self, flags: Tensor) -> None:
        """Counts a step.

        Args:
            flags: A bool for each counter, the same on every replica.
        """
        counts = on_this_replica(self._counts)
        counts.assign_add(tf.cast(flags, counts.dtype))

    def add_at_floor(self, skips: Tensor, is_at_floor: Tensor) -> None:
        """Counts a skipped step at the floor, starts at 0 above it.

        Args:
            skips: Scalar bool tensor: whether the step is skipped.
            is_at_floor: Scalar bool tensor: whether its loss scale was the
                least that there is.
        """
        count = on_this_replica(self._skipped_at_floor)
        count.assign(
            tf.where(is_at_floor, count + tf.cast(skips, count.dtype), 0)
        )

    def flags(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Tensor:
        """Returns a bool for each counter: whether its gradient is bad."""
        flags = [tf.constant(False)] * len(self._paths)
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                flags[self._index[self._key_of(variable)]] = numerics.found_inf(
                    [gradient_lists.row_values(gradient)]
                )
        return tf.stack(flags)

    def read(self) -> dict[str, int]:
        """Returns the counts above 0, by path. Waits for the device."""
        counts = ops.convert_to_numpy(self._counts)
        return {
            path: int(count)
            for path, count in zip(self._paths, counts, strict=True)
            if count
        }

    def read_at_floor(self) -> int:
        """Returns the steps skipped at the floor. Waits for the device."""
        return int(ops.convert_to_numpy(self._skipped_at_floor))


def _distinct(paths: Sequence[str]) -> list[str]:
    """Returns the paths, the second of a kind with " (2)" and so on."""
    seen: collections.Counter[str] = collections.Counter()
    distinct = []
    for path in paths:
        seen[path] += 1
        distinct.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return distinct
