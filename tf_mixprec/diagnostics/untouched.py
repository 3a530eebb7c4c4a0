"""Lets something run on a model and leaves no trace of it."""

from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

_RANDOM_STATE = "seed_generator_state"  # what Keras calls it


@contextmanager
def untouched(variables: Iterable[Any]) -> Iterator[None]:
    """Puts variables back, after a block, to what they were before.

    Args:
        variables: Keras variables. What the block does not change costs a copy
            all the same.
    """
    before = [(each, keras.ops.copy(each)) for each in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def state_of(model: Any) -> list[Any]:
    """Returns what a step changes beside the trained weights.

    Moving statistics, states of random generators and of recurrent layers, and
    what metrics count.

    Args:
        model: The model.
    """
    trained = {id(v) for v in model.trainable_variables}
    counted = {id(v): v for v in [*model.variables, *model.metrics_variables]}
    return [v for v in counted.values() if id(v) not in trained]


def random_states(layer: Any) -> list[Any]:
    """Returns the states of the random generators of a layer or model.

    Args:
        layer: It.
    """
    return [each for each in layer.variables if each.name == _RANDOM_STATE]
