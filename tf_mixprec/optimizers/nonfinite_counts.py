"""How often the gradient of each variable was inf or nan."""

from collections.abc import Sequence

import keras
from keras import ops

from tf_mixprec import numerics
from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class NonfiniteCounts:
    """One counter for each variable, on the device.

    Args:
        variables: The variables that an optimizer updates.
    """

    def __init__(self, variables: Sequence[Variable]):
        self._paths = [
            getattr(variable, "path", variable.name) for variable in variables
        ]
        self._index = {id(v): index for index, v in enumerate(variables)}
        self._counts = keras.Variable(
            ops.zeros(len(self._paths), "int32"),
            trainable=False,
            aggregation="only_first_replica",
            name="nonfinite_counts",
        )

    def add_if(
        self,
        found_inf: Tensor,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
    ) -> None:
        """Counts a step.

        Args:
            found_inf: Scalar bool tensor: whether any gradient is inf or nan.
            gradients: The same on every replica.
            variables: The variable of each.
        """

        def add() -> None:
            self.add(self.flags(gradients, variables))

        if gradient_lists.sees_gpu():  # where a branch waits for the host
            add()
        else:
            tf.cond(found_inf, add, lambda: None)

    def add(self, flags: Tensor) -> None:
        """Counts a step, given what `flags` returns for it on all replicas."""
        counts = distribution.component_on_this_replica(
            keras_internals.held_variable(self._counts)
        )
        counts.assign_add(tf.cast(flags, counts.dtype))

    def flags(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Tensor:
        """Returns a bool for each counter: whether its gradient is bad."""
        flags = [tf.constant(False)] * len(self._paths)
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None and id(variable) in self._index:
                flags[self._index[id(variable)]] = numerics.found_inf(
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
