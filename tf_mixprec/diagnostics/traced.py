"""Functions that are traced for one report, without a warning of TensorFlow's.

TensorFlow counts how often the same code is traced, and warns of the fifth time
as of a fault. A report traces a model in another precision each time, on
purpose.
"""

from collections.abc import Callable
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def traced(
    function: Callable[..., Any], *, jit_compile: bool = False
) -> Callable[..., Any]:
    """Returns a function that is traced once for each shape and dtype.

    Args:
        function: Takes and returns nested tensors, and no keyword arguments.
        jit_compile: Whether XLA compiles it.
    """
    run = tf.function(function, autograph=False, jit_compile=jit_compile)
    return lambda *given: run.get_concrete_function(*given)(*given)
