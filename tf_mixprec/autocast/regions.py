"""Parts of a traced function that autocast leaves as they are written."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_spans: weakref.WeakKeyDictionary[Any, list[tuple[int, int]]] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Marks the ops that are traced meanwhile, to be left as they are."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    try:
        yield
    finally:
        last = len(graph.get_operations())
        _spans.setdefault(graph, []).append((first, last))


def marked_ops(graph: Any) -> set[Any]:
    """Returns the ops of a graph that were marked."""
    all_ops = graph.get_operations()
    spans = _spans.get(graph, ())
    return {op for first, last in spans for op in all_ops[first:last]}


def full_precision(function: Callable) -> Callable:
    """Wraps a function that `mp.autocast` leaves in float32.

    Within a function under `mp.autocast` its operations stay as they are
    written: 16-bit tensors that come in are cast to float32 first, and what
    it returns is float32. Elsewhere it is the function itself. It is also a
    decorator.

    Args:
        function: Function, `tf.function` or Keras model.

    Raises:
        TypeError: If `function` cannot be called.

    Example:

    >>> import tensorflow as tf
    >>> import tf_mixprec as mp
    >>> @mp.full_precision
    ... def energy(x):
    ...     return tf.matmul(x, x, transpose_b=True)
    >>> @mp.autocast(dtype="bfloat16")
    ... def function(x):
    ...     return tf.matmul(x, x), energy(x)
    >>> [each.dtype.name for each in function(tf.ones((2, 2)))]
    ['float32', 'float32']
    """
    check_callable(function)

    @functools.wraps(function, updated=())
    def full_precision_function(*args: Any, **kwargs: Any) -> Any:
        with as_written():
            return function(*args, **kwargs)

    full_precision_function.is_full_precision = True  # type: ignore[attr-defined]
    return full_precision_function


def check_callable(function: Any) -> None:
    """Rejects what is no function."""
    if not callable(function):
        raise TypeError(
            "`function` must be callable: a Python function, a `tf.function` "
            "or a Keras model. A block of code is wrapped by making a "
            "function of it; a dtype goes into `dtype=`. Received: function="
            f"{function!r}"
        )
    if inspect.isclass(function) or inspect.iscoroutinefunction(function):
        raise TypeError(
            "`function` must be a function that TensorFlow can trace, which a "
            "class or an `async` function is not; decorate the method that "
            f"computes. Received: function={function!r}"
        )
