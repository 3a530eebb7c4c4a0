"""Gradients of 16-bit ops that are sums, summed in float32.

TensorFlow's CPU kernel of `BiasAddGrad` adds up bfloat16 in bfloat16, so that
a sum stops growing at 256 equal terms, and what scatters the gradient of a
gather does so on CPUs with and without XLA.
"""

from __future__ import annotations

from typing import Any

import keras

from tf_mixprec.autocast import tensorflow_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_BIAS = "TfMixprecBiasAdd"
_SCATTERED = "TfMixprecGather"
_GRADIENTS = {
    "BiasAdd": _BIAS,
    "Gather": _SCATTERED,
    "GatherV2": _SCATTERED,
    "GatherNd": _SCATTERED,
}


def gradient_name(op_type: str, low: tf.DType) -> str:
    """Returns the name of the gradient of a 16-bit op; empty for its own.

    Args:
        op_type: Type of the op.
        low: The 16-bit dtype.
    """
    if op_type == "BiasAdd" and low == tf.float16:
        return ""  # that kernel is right
    return _GRADIENTS.get(op_type, "")


def _of_bias_add(op: tf.Operation, gradient: Any) -> list[Any]:
    layout = op.get_attr("data_format")
    rank = op.inputs[0].shape.rank
    if rank is None:
        total = tf.raw_ops.BiasAddGrad(
            out_backprop=tf.cast(gradient, tf.float32), data_format=layout
        )
        return [gradient, tf.cast(total, gradient.dtype)]
    # `Sum` adds up bfloat16 in float32, without a copy in float32.
    channel = 1 if layout == b"NCHW" else rank - 1
    axes = [axis for axis in range(rank) if axis != channel]
    return [gradient, tf.reduce_sum(gradient, axes)]


def _of_gather(op: tf.Operation, gradient: Any) -> list[Any]:
    """Takes the gradient of the same op in float32, which needs no values."""
    values, *others = op.inputs
    wide = tf.zeros(tf.shape(values), tf.float32)
    attributes = {
        name: value
        for name, value in op.node_def.attr.items()
        if name != "_gradient_op_type"
    }
    attributes["Tparams"] = tensorflow_internals.type_attribute(tf.float32)
    graph = tf.compat.v1.get_default_graph()
    gathered = graph.create_op(op.type, [wide, *others], attrs=attributes)
    (found,) = tf.gradients(
        gathered.outputs, [wide], [tf.cast(gradient, tf.float32)]
    )
    found = tf.cast(tf.convert_to_tensor(found), values.dtype)
    return [found, *[None] * len(others)]


if keras.backend.backend() == "tensorflow":
    tf.RegisterGradient(_BIAS)(_of_bias_add)
    tf.RegisterGradient(_SCATTERED)(_of_gather)
