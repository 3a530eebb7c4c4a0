"""A batch on its way to the replicas, and what comes back."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tf_mixprec.optimizers import distribution
from tf_mixprec.training.micro_batches import first_tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Replicas:
    """The replicas of a strategy that this process feeds.

    Args:
        strategy: The strategy of the model.
    """

    def __init__(self, strategy: Any):
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync
        # Without a strategy there is one replica, and no list of devices.
        self._local_count = (
            1 if self.count == 1 else len(strategy.extended.worker_devices)
        )
        self._device = None  # the caller's
        if self.count == 1 and distribution.is_a_strategy(strategy):
            (self._device,) = strategy.extended.worker_devices

    def device(self) -> contextlib.AbstractContextManager[None]:
        """Returns a scope in which to call what is traced for all replicas.

        XLA compiles for the device of the caller, also where the only replica
        has another.
        """
        return tf.device(self._device)

    def distributed(self, batch: Any) -> Any:
        """Returns a batch with a part for each replica.

        Args:
            batch: Nested structure of arrays, tensors, and `None`. What a
                `strategy.experimental_distribute_dataset` yields has the parts
                already.

        Raises:
            ValueError: If there are fewer examples than replicas.
        """
        batch = keras.tree.map_structure(_tensor, batch)
        leaves = [x for x in keras.tree.flatten(batch) if x is not None]
        if any(isinstance(x, tf.distribute.DistributedValues) for x in leaves):
            return batch
        first = first_tensor(batch)
        if self._local_count == 1:
            return batch
        size, count = int(first.shape[0]), self._local_count
        if size < count:
            raise ValueError(
                "A batch must have an example for each replica, because each "
                f"takes its part of it. Received: {size} examples for {count} "
                "replicas"
            )

        def part(index: int) -> Any:
            start, end = index * size // count, (index + 1) * size // count
            return keras.tree.map_structure(
                lambda t: t if t is None else t[start:end], batch
            )

        # One structure with distributed leaves, as a distributed data set has.
        return keras.tree.map_structure(
            self._packed, *(part(index) for index in range(count))
        )

    def first(self, value: Any) -> Any:
        """Returns what the first replica of this process has."""
        return keras.tree.map_structure(
            lambda v: (
                v
                if v is None
                else self.strategy.experimental_local_results(v)[0]
            ),
            value,
        )

    def sum(self, value: Any) -> Any:
        """Returns the sum over all replicas, of a structure of tensors."""
        return self._reduced("SUM", value)

    def mean(self, value: Any) -> Any:
        """Returns the mean over all replicas, of a structure of tensors."""
        return self._reduced("MEAN", value)

    @property
    def are_several(self) -> bool:
        """Whether there is more than one."""
        return self.count > 1

    @property
    def has_other_workers(self) -> bool:
        """Whether other processes feed replicas too."""
        return self.count > self._local_count

    def mean_of(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a traced function, of the means of what replicas return.

        Args:
            function: From the batch of a replica to a structure of tensors.
        """
        return tf.function(
            lambda batch: self.mean(self.run(function, batch)),
            autograph=False,
            reduce_retracing=True,
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on every replica, with its parts of arguments."""
        return self.strategy.run(function, args=arguments)

    def _packed(self, *values: Any) -> Any:
        if values[0] is None:
            return None
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[
                context.replica_id_in_sync_group % self._local_count
            ]
        )

    def _reduced(self, how: str, value: Any) -> Any:
        if self.count == 1:
            return self.first(value)
        return keras.tree.map_structure(
            lambda v: self.strategy.reduce(how, v, axis=None), value
        )


def _tensor(value: Any) -> Any:
    """Returns an array as a tensor, floats in Keras's float type."""
    if value is None or isinstance(value, tf.distribute.DistributedValues):
        return value
    if keras.ops.is_tensor(value) or isinstance(value, tf.RaggedTensor):
        return value
    if isinstance(value, (tf.data.Dataset, tf.data.Iterator)):
        raise TypeError(
            "A step takes one batch, because a data set has many; call "
            "`mp.fit(step, dataset, epochs=...)`, or `step(x, y)` for each "
            f"`x, y` of it. Received: {value!r}"
        )
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.config.floatx())
    return tf.convert_to_tensor(array)
