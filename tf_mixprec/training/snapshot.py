"""Values of variables from before a step, for one that turns out bad."""

from collections.abc import Iterable
from typing import Any

from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import keras_internals as optimizer_internals


class Snapshot:
    """What variables hold now, on the replica that calls.

    Args:
        variables: Keras variables.
    """

    def __init__(self, variables: Iterable[Variable]):
        # Those of this replica, so that nothing travels and nothing is
        # averaged when they are written.
        self._components = [
            distribution.component_on_this_replica(
                optimizer_internals.held_variable(variable)
            )
            for variable in variables
        ]
        self._values = [ops.copy(each) for each in self._components]

    def put_back(self, condition: Tensor) -> None:
        """Gives the variables their values back, without a branch.

        Args:
            condition: Scalar bool tensor: whether to. The same on every
                replica.
        """
        for component, value in zip(
            self._components, self._values, strict=True
        ):
            component.assign(ops.where(condition, value, component))


def changed_by_a_step(model: Any) -> list[Variable]:
    """Returns what a step changes and the optimizer does not protect."""
    # Not `non_trainable_variables`, which has the seeds in it.
    variables = [*model.non_trainable_weights, *model.metrics_variables]
    return list({id(variable): variable for variable in variables}.values())
