"""Keeps AutoGraph out of the package's code."""

from collections.abc import Callable
from typing import TypeVar

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

F = TypeVar("F", bound=Callable)


def as_written(function: F) -> F:
    """Decorates a function that `tf.function` is to trace as it is written.

    AutoGraph would rewrite every function below it. There are no `if`s on
    tensors here, so it would change nothing, and it nearly doubles the time
    that tracing takes.

    Args:
        function: A function or method that users call while tracing.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    return tf.autograph.experimental.do_not_convert(function)
