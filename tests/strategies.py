"""Replicas on the logical devices of one processor."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf


class NoStrategy:
    """The interface of a strategy, for one device without any."""

    num_replicas_in_sync = 1

    def scope(self):
        return contextlib.nullcontext()

    def run(self, function, args=()):
        return function(*args)

    def experimental_local_results(self, value):
        return (value,)


def mirrored(count):
    """Returns a strategy with so many replicas.

    Not with TensorFlow's collectives, which mix up the strategies of one
    process; `test_collectives.py` has those, in processes of their own.
    """
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(count)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


MAKERS = {
    "none": NoStrategy,
    "first_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_4": lambda: mirrored(4),
}

_MIRRORED_4 = pytest.param("mirrored_4", marks=pytest.mark.slow)
ALL = pytest.mark.parametrize(
    "strategy_name",
    ["none", "one_device", "mirrored_1", "mirrored_2", _MIRRORED_4],
)
SOME = pytest.mark.parametrize("strategy_name", ["one_device", "mirrored_2"])
SEVERAL = pytest.mark.parametrize("strategy_name", ["mirrored_2", _MIRRORED_4])


def make(name):
    """Returns a strategy by its name in `MAKERS`."""
    return MAKERS[name]()


def per_replica(strategy, values):
    """Returns a value for each replica, to give to `strategy.run`."""
    values = [tf.convert_to_tensor(v) for v in values]
    if isinstance(strategy, NoStrategy):
        return values[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


def copies(strategy, variable):
    """Returns the value of a Keras variable on each replica, as arrays."""
    return [
        np.array(component.numpy())
        for component in strategy.experimental_local_results(variable.value)
    ]


def one_value(strategy, variable):
    """Returns the value of a variable, which must be the same everywhere."""
    first, *others = copies(strategy, variable)
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first
