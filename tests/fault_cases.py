"""Ids for the tests of known faults of stock Keras."""

import pytest
import tensorflow as tf

MODES = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}


def modes(number, *names):
    """Runs a test in eager code, in a graph and under XLA.

    Args:
        number: Number of the fault; the ids start with `fault_NN`.
        *names: Which of these modes. Defaults to all.
    """
    return pytest.mark.parametrize(
        "call",
        [
            pytest.param(MODES[name], id=f"fault_{number:02d}_{name}")
            for name in names or MODES
        ],
    )


def kinds(number, argument, *values):
    """Runs a test for several cases of one fault, named by their value."""
    return pytest.mark.parametrize(
        argument,
        [
            pytest.param(value, id=f"fault_{number:02d}_{value}")
            for value in values
        ],
    )
