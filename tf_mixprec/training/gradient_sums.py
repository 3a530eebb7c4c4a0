"""Sums over the micro-batches of a step, each replica its own."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class GradientSums:
    """Variables that add up gradients in float32, and scalars beside them.

    Variables and not tensors, since a loop must not run on a replica whose
    micro-batches need the others' answer. They are zero between steps in all
    but name, so no checkpoint has them.

    Args:
        variables: The trainable variables, in the strategy's scope.
        names: Of the scalars.
    """

    def __init__(self, variables: Sequence[Variable], names: Sequence[str]):
        self._names = list(names)
        self._sums = [
            _variable(v.shape, "float64" if v.dtype == "float64" else "float32")
            for v in variables
        ]
        self._scalars = [_variable((), "float32") for _ in names]
        self._count = _variable((), "float32")
        self._dropped = _variable((), "float32")
        # What has a gradient: known once a micro-batch is traced.
        self._has_gradient = [True] * len(self._sums)

    def reset(self) -> None:
        """Starts a step."""
        every = [*self._sums, *self._scalars, self._count, self._dropped]
        for variable in every:
            component = distribution.component_on_this_replica(variable)
            component.assign(tf.zeros(variable.shape, variable.dtype))

    def add(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        scalars: dict[str, Tensor],
        weight: Tensor,
        is_bad: Tensor,
    ) -> None:
        """Adds a micro-batch, or leaves it out.

        Args:
            gradients: Of the scaled loss on this replica, times the weight.
            variables: The variable of each.
            scalars: By name, what else is averaged over micro-batches.
            weight: Scalar float32 tensor: its number of examples, the average
                being 1.
            is_bad: Scalar bool tensor, the same on every replica.
        """
        self._has_gradient = [g is not None for g in gradients]

        def add() -> None:
            for total, gradient, variable in zip(
                self._sums, gradients, variables, strict=True
            ):
                if gradient is not None:
                    _add(total, gradient, variable)
            for total, name in zip(self._scalars, self._names, strict=True):
                _add(total, tf.cast(scalars[name], tf.float32) * weight)
            _add(self._count, weight)

        if gradient_lists.sees_gpu():  # where a branch waits for the host
            good = tf.logical_not(is_bad)
            gradients = [
                g if g is None else tf.where(good, g, tf.zeros_like(g))
                for g in map(_dense, gradients)
            ]
            scalars = {
                k: tf.where(good, v, tf.zeros_like(v))
                for k, v in scalars.items()
            }
            weight = tf.where(good, weight, 0.0)
            add()
        else:
            tf.cond(is_bad, lambda: None, add)
        dropped = distribution.component_on_this_replica(self._dropped)
        dropped.assign(tf.maximum(dropped, tf.cast(is_bad, tf.float32)))

    @property
    def gradients(self) -> list[Gradient]:
        """The sums on this replica, `None` where there was no gradient."""
        return [
            _value(total) if present else None
            for total, present in zip(
                self._sums, self._has_gradient, strict=True
            )
        ]

    @property
    def count(self) -> Tensor:
        """How many micro-batches were added, by weight; scalar float32."""
        return _value(self._count)

    @property
    def has_dropped(self) -> Tensor:
        """Whether one was left out; scalar bool tensor."""
        return _value(self._dropped) > 0

    @property
    def means(self) -> dict[str, Tensor]:
        """The scalars' averages on this replica, nan if nothing was added."""
        count = self.count
        return {
            name: _value(total) / count
            for name, total in zip(self._names, self._scalars, strict=True)
        }


def _variable(shape: Any, dtype: str) -> Any:
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def _value(variable: Any) -> Tensor:
    component = distribution.component_on_this_replica(variable)
    # What is to be summed over workers must say which device it is on.
    with tf.device(component.device):
        return tf.identity(component)


def _dense(gradient: Gradient) -> Gradient:
    return gradient if gradient is None else tf.convert_to_tensor(gradient)


def _add(total: Any, summand: Any, variable: Variable | None = None) -> None:
    """Adds to a sum on this replica."""
    total = distribution.component_on_this_replica(total)
    if variable is not None and gradient_lists.is_overwritten(variable):
        total.assign(tf.cast(_dense(summand), total.dtype))  # no gradient
        return
    summand = gradient_lists.cast(summand, total.dtype)
    if gradient_lists.is_sparse(summand):
        total.scatter_add(summand)
    else:
        total.assign_add(summand)
