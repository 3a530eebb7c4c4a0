"""The private parts of TensorFlow that rewriting a function needs.

They are here alone, and `tests/autocast/test_tensorflow_internals.py` fails
when TensorFlow moves one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    from tensorflow.core.framework import attr_value_pb2
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.framework import function_def_to_graph
    from tensorflow.python.framework import kernels
    from tensorflow.python.framework import op_def_registry
    from tensorflow.python.framework import ops


def new_graph(name: str) -> Any:
    """Returns a graph that takes in what is used of those around it."""
    return tf.__internal__.FuncGraph(name)


def converted(function: Callable) -> Callable:
    """Returns a function with `if` and `for` over tensors made graph ops.

    It is what `tf.function` does to the function that it is given, whatever
    is around it.
    """
    return tf.__internal__.autograph.tf_convert(
        function, ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
    )


def captures(graph: Any) -> list[tuple[Any, Any]]:
    """Returns what a graph uses from outside, with what stands for it."""
    return list(graph.captures)


def type_attribute(dtype: tf.DType) -> Any:
    """Returns an attribute of an op that says a dtype."""
    return attr_value_pb2.AttrValue(type=dtype.as_datatype_enum)


def types_attribute(dtypes: list[tf.DType]) -> Any:
    """Returns an attribute of an op that says several dtypes."""
    types = [dtype.as_datatype_enum for dtype in dtypes]
    return attr_value_pb2.AttrValue(
        list=attr_value_pb2.AttrValue.ListValue(type=types)
    )


def op_exists(op_type: str) -> bool:
    """Returns whether TensorFlow, or a loaded library, has an op."""
    return op_def_registry.get(op_type) is not None


@functools.cache
def kernel_dtypes(
    op_type: str, device: str
) -> tuple[dict[str, frozenset[int]], ...]:
    """Returns the dtypes that each kernel of an op takes on a device.

    Args:
        op_type: Name of the op.
        device: `"CPU"` or `"GPU"`.

    Returns:
        For each kernel a dict from type attributes to the numbers of dtypes;
        an attribute that is not there may be any.
    """
    return tuple(
        {
            each.name: frozenset(each.allowed_values.list.type)
            for each in kernel.constraint
            if each.allowed_values.list.type
        }
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type == device and not kernel.label
    )


def gradient_function(op: tf.Operation) -> Callable:
    """Returns the function that differentiates an op."""
    return ops.get_gradient_function(op)


def function_graph(graph: Any, name: str, op: tf.Operation) -> Any:
    """Returns the graph of a function that an op calls.

    It is the very graph that was traced, for the gradient functions of
    `tf.custom_gradient` refer to its tensors. A graph that no longer has the
    inputs of the op (TensorFlow adds some, for a gradient) is read back from
    its definition.

    Args:
        graph: The graph that the op is in.
        name: Name of the function.
        op: The op.
    """
    function = _function(graph, name)
    if function is None:
        raise KeyError(name)
    definition = function.cached_definition
    traced = getattr(function, "graph", None)  # TensorFlow 1's has none
    if (
        traced is not None
        and len(traced.inputs) == len(definition.signature.input_arg)
        and len(traced.outputs) == len(definition.signature.output_arg)
    ):
        return traced
    with op.graph.as_default():
        return function_def_to_graph.function_def_to_graph(definition)


def copy_functions(source: Any, target: Any, op: tf.Operation) -> None:
    """Makes the functions that an op refers to known to another graph."""
    for value in op.node_def.attr.values():
        names = [value.func.name] if value.func.name else []
        names += [each.name for each in value.list.func]
        for name in names:
            function = _function(source, name)
            if function is not None:
                target._add_function_recursive(function)


def _function(graph: Any, name: str) -> Any:
    """Returns a function that a graph, or one around it, knows; or `None`."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None
