"""Which layers make the numbers that a model returns."""

from collections.abc import Iterable
from typing import Any

import keras

from tf_mixprec.conversion import keras_internals

# What selects, reshapes, or is a function of single numbers.
_PASSES_ON = (
    keras.layers.Activation,
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Permute,
    keras.layers.Reshape,
    keras.layers.Softmax,
)


def has_graph(model: keras.Model) -> bool:
    """Returns whether a model is a graph of layers, and not code of its own."""
    return isinstance(model, keras.Sequential) or hasattr(model, "outputs")


def heads(model: Any) -> set[int]:
    """Returns the `id` of each layer whose numbers the model returns.

    A layer that only passes on counts together with the one before it: the
    float32 softmax of 16-bit logits has lost the digits of the logits.

    Args:
        model: A layer. One without a graph of layers, such as a subclassed
            model, has no heads.
    """
    if isinstance(model, keras.Sequential) and not model.built:
        return _last_of(model.layers)
    outputs = getattr(model, "outputs", None)
    if not isinstance(model, keras.Model) or outputs is None:
        return set()
    return _before(keras.tree.flatten(outputs))


def _last_of(layers: list[Any]) -> set[int]:
    result = set()
    for layer in reversed(layers):
        result.add(id(layer))
        if not isinstance(layer, _PASSES_ON):
            break
    return result


def _before(tensors: Iterable[Any]) -> set[int]:
    result = set()
    seen = set()
    waiting = [t for t in tensors if t is not None]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        operation = keras_internals.operation_of(tensor)
        result.add(id(operation))
        if not isinstance(operation, keras.Layer) or isinstance(
            operation, _PASSES_ON
        ):
            waiting += keras_internals.inputs_of(tensor)
    return result
