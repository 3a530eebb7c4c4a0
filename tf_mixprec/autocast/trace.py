"""A function that is traced in a graph of its own, to be built elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.autocast import tensorflow_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Trace:
    """The ops of a function, in a graph that nothing runs.

    Args:
        name: Name of the graph.
        function: Function without arguments; tensors that it uses of graphs
            around it are inputs of the graph.

    Attributes:
        graph: The `FuncGraph`. Its outputs are the tensors of it that the
            function returns, each once.
        inputs: Pairs of an input of the graph and what it is outside.
    """

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self.graph = tensorflow_internals.new_graph(name)
        with self.graph.as_default():
            self._results = function()
            self._flat = tf.nest.flatten(self._results, expand_composites=True)
        inside = {
            id(each): each for each in self._flat if is_of(each, self.graph)
        }
        self.graph.outputs = list(inside.values())
        self.inputs = [
            (inside, outside)
            for outside, inside in tensorflow_internals.captures(self.graph)
        ]

    @property
    def outside_of(self) -> dict[int, Any]:
        """By the ids of the inputs, what they are outside."""
        return {id(inside): outside for inside, outside in self.inputs}

    def packed(self, values: Sequence[Any]) -> Any:
        """Returns what the function returns, with other tensors.

        Args:
            values: What stands for the outputs of the graph.
        """
        pairs = zip(self.graph.outputs, values, strict=True)
        new = {id(old): value for old, value in pairs}
        return tf.nest.pack_sequence_as(
            self._results,
            [new.get(id(each), each) for each in self._flat],
            expand_composites=True,
        )


def is_of(value: Any, graph: Any) -> bool:
    """Returns whether something is a tensor of a graph."""
    return (
        isinstance(value, tf.Tensor)
        and tf.is_symbolic_tensor(value)
        and value.graph is graph
    )
