"""The functions of `tf.custom_gradient` in a rewritten graph.

Such a function refers to tensors of the traced graph. When it is asked, it is
traced beside them, and built again where TensorFlow wants the gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.autocast.plan import function_names

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_count = itertools.count()

# From a traced graph, and pairs of its inputs and what stands for them, to
# what stands for its outputs.
Build = Callable[[Any, list[tuple[Any, Any]]], list[Any]]


def is_custom(op: tf.Operation) -> bool:
    """Returns whether an op carries a function of `tf.custom_gradient`."""
    return op.type == "IdentityN" and bool(
        op.node_def.attr["_gradient_op_type"].s
    )


def are_in(graph: Any) -> bool:
    """Returns whether there are any in a graph or in what it calls."""
    for op in graph.get_operations():
        if is_custom(op):
            return True
        for name in function_names(op):
            inside = tensorflow_internals.function_graph(graph, name, op)
            if are_in(inside):
                return True
    return False


def registered(
    op: tf.Operation, value: Callable[[Any], Any], build: Build
) -> str:
    """Registers the gradient for what is built in the place of an op.

    Args:
        op: The op of the traced graph.
        value: From a tensor of that graph to what stands for it.
        build: Builds a traced graph in the current one.

    Returns:
        The name of the gradient.
    """
    name = f"TfMixprecGradient-{next(_count)}"
    function = tensorflow_internals.gradient_function(op)

    @tf.RegisterGradient(name)
    def gradient(new: tf.Operation, *gradients: Any) -> list[Any]:
        results, graph, pairs = _traced(function, op, gradients)
        pairs += [
            (inside, value(outside))
            for outside, inside in tensorflow_internals.captures(graph)
        ]
        built = iter(build(graph, pairs))
        return [
            None if each is None else _in_dtype(next(built), old.dtype)
            for each, old in zip(results, new.inputs, strict=True)
        ]

    return name


def _traced(
    function: Callable, op: tf.Operation, gradients: Sequence[Any]
) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
    """Traces a gradient function beside its op.

    Args:
        function: The function.
        op: The op.
        gradients: The gradients of what stands for the op's outputs.

    Returns:
        What the function returned, its graph, and pairs of the inputs of that
        and the gradients.
    """
    with op.graph.as_default():
        graph = tensorflow_internals.new_graph("gradient")
    given = [
        None if each is None else tf.convert_to_tensor(each)
        for each in gradients
    ]
    with graph.as_default():
        inputs = [
            None
            if each is None
            else tf.compat.v1.placeholder(old.dtype, each.shape)
            for old, each in zip(op.outputs, given, strict=True)
        ]
        results = list(function(op, *inputs))
        graph.outputs = [
            tf.convert_to_tensor(each) for each in results if each is not None
        ]
    pairs = [
        (inside, each)
        for inside, each in zip(inputs, given, strict=True)
        if each is not None
    ]
    return results, graph, pairs


def _in_dtype(value: Any, dtype: tf.DType) -> Any:
    return tf.cast(value, dtype) if dtype.is_floating else value
