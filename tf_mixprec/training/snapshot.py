"""Values of variables from before a step, for one that turns out bad."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import keras_internals as optimizer_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Snapshot:
    """What a step changes and the optimizer does not protect, as it is now.

    On the replica that calls: non-trainable weights, such as the statistics of
    batch normalization, and the state of the metrics. Seeds of random layers
    are to go on.

    Args:
        model: A compiled model, with all its variables.
    """

    def __init__(self, model: Any):
        self._statistics = _kept(model.non_trainable_weights)
        self._metrics = _kept(model.metrics_variables)

    def put_back(self, skipped: Tensor) -> None:
        """Takes a skipped step back, without a branch.

        Statistics that have become inf or nan are put back in any case: a
        variance can overflow where every gradient is finite, and would stay
        infinite for ever.

        Args:
            skipped: Scalar bool tensor, the same on every replica.
        """
        for component, before in self._metrics:
            component.assign(ops.where(skipped, before, component))
        self._put_back(skipped)

    def put_statistics_back(self) -> None:
        """Takes back what a test has done to statistics."""
        self._put_back(tf.constant(True))

    def _put_back(self, skipped: Tensor) -> None:
        for component, before in self._statistics:
            takes_back = skipped
            if tf.as_dtype(component.dtype).is_floating:
                broken = ops.isfinite(before) & ~ops.isfinite(component)
                takes_back = skipped | broken
            component.assign(ops.where(takes_back, before, component))


def _kept(variables: Iterable[Variable]) -> list[tuple[Any, Tensor]]:
    """Returns each variable's component on this replica, with a copy."""
    # The component, so that nothing travels when it is written, and nothing is
    # averaged over replicas.
    components = [
        distribution.component_on_this_replica(
            optimizer_internals.held_variable(variable)
        )
        for variable in variables
    ]
    return [(component, ops.copy(component)) for component in components]
