"""What is known of the function that TensorFlow is tracing."""

from collections.abc import Callable
from typing import Any
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


def traced(function: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that is traced where eager code calls it.

    Args:
        function: Without arguments. In a graph it is traced with what is
            around it.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    graph_function = tf.function(function, autograph=False)
    return lambda: graph_function() if tf.executing_eagerly() else function()


def current_graph() -> Any:
    """Returns the graph that is being traced, `None` in eager code."""
    if keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()
