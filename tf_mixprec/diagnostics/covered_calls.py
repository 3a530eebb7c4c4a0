"""Calls of layers that go through a function while a step is traced."""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.optimizers import tracing
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import covered

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

Call = Callable[..., Any]


@contextmanager
def covered_calls(
    layers: Sequence[TappedLayer],
    around: Callable[[TappedLayer, Call, tuple[Any, ...], dict[str, Any]], Any],
) -> Iterator[None]:
    """Lets a function make the calls of layers in a block.

    Not those in the body of a loop or in a branch: what is computed for them
    there could not come out.

    Args:
        layers: From `tapped_layers`.
        around: From a layer, its call, and what it is given, to what it
            returns.
    """
    graph = tracing.current_graph()
    by_id = {id(each.layer): each for each in layers}

    def cover(layer: Any, call: Call) -> Call:
        tapped = by_id[id(layer)]

        @functools.wraps(call)
        def covered_call(*args: Any, **kwargs: Any) -> Any:
            if tracing.current_graph() is not graph:
                return call(*args, **kwargs)
            return around(tapped, call, args, kwargs)

        return covered_call

    with covered([each.layer for each in layers], "call", cover):
        yield


def same_value(value: Tensor) -> Tensor:
    """Returns a tensor of its own, for what depends on a value from here on.

    Args:
        value: A tensor; the mask that Keras may have set on it goes along.
    """
    same = tf.identity(value)
    keras_internals.copy_mask(value, same)
    return same
