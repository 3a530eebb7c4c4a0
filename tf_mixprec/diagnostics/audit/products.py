"""Matrix products and convolutions of a trace: their sizes and their work."""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tf_mixprec.diagnostics.audit.trace import TracedOp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A product of matrices, or a convolution.

    Args:
        path: Of the layer.
        dtype: Of its factors.
        multiply_adds: In a call of the model; `None` if not known.
        sizes: By name, those that should be multiples of 8.
        depth: How many products are summed to a number; `None` if not known.
    """

    path: str
    dtype: str
    multiply_adds: int | None
    sizes: Mapping[str, int]
    depth: int | None


def size_of(shape: Any) -> int | None:
    """Returns the number of elements; `None` if not known."""
    return shape.num_elements() if shape.rank is not None else None


def times(*factors: int | None) -> int | None:
    """Returns a product of numbers; `None` if one is not known."""
    return None if None in factors else math.prod(factors)  # type: ignore[arg-type]


def product_of(traced: TracedOp) -> Product | None:
    """Returns the product that an operation is; `None` for another one."""
    describe = _PRODUCTS.get(traced.op.type)
    if describe is None or not traced.op.outputs[0].dtype.is_floating:
        return None
    count, sizes, depth = describe(traced.op)
    return Product(
        path=traced.path,
        dtype=traced.op.outputs[0].dtype.name,
        multiply_adds=times(count, traced.times),
        sizes={name: size for name, size in sizes.items() if size},
        depth=depth,
    )


Described = tuple[int | None, dict[str, int | None], int | None]


def _matrix_product(op: Any) -> Described:
    a, b = (each.shape for each in op.inputs[:2])
    transposed = [
        op.get_attr(name) for name in _TRANSPOSED[op.type == "MatMul"]
    ]
    if a.rank is None or b.rank is None:
        return None, {}, None
    depth = a[-2] if transposed[0] else a[-1]
    columns = b[-2] if transposed[1] else b[-1]
    count = times(size_of(op.outputs[0].shape), depth)
    return count, {"inputs": depth, "outputs": columns}, depth


_TRANSPOSED = {
    True: ("transpose_a", "transpose_b"),
    False: ("adj_x", "adj_y"),
}


def _einsum(op: Any) -> Described:
    """Every pair of labels is multiplied once."""
    inputs, _, output = op.get_attr("equation").decode().partition("->")
    terms = inputs.split(",")
    if "..." in inputs or len(terms) != 2:
        return None, {}, None
    sizes: dict[str, int | None] = {}
    for labels, tensor in zip(terms, op.inputs, strict=True):
        if tensor.shape.rank is None:
            return None, {}, None
        sizes.update(zip(labels, tensor.shape, strict=True))
    summed = [size for label, size in sizes.items() if label not in output]
    depth = times(*summed)
    kept = [sizes[label] for label in terms[1] if label in output]
    columns = times(*kept[-1:])
    return (
        times(*sizes.values()),
        {"inputs": depth, "outputs": columns},
        depth,
    )


def _convolution(op: Any) -> Described:
    *window, channels, filters = op.inputs[1].shape
    depth = times(*window, channels)
    count = times(size_of(op.outputs[0].shape), depth)
    sizes = {"input channels": channels, "output channels": filters}
    return count, sizes, depth


def _transposed_convolution(op: Any) -> Described:
    # A filter is of the convolution that this is the gradient of.
    *window, filters, channels = op.inputs[1].shape
    count = times(size_of(op.inputs[2].shape), *window, filters)
    sizes = {"input channels": channels, "output channels": filters}
    return count, sizes, channels


def _depthwise_convolution(op: Any) -> Described:
    height, width, *_ = op.inputs[1].shape
    depth = times(height, width)
    return times(size_of(op.outputs[0].shape), depth), {}, depth


def _cudnn_recurrence(op: Any) -> Described:
    """Sizes of time, batch and features; all gates in one product."""
    steps, batch, features = op.inputs[0].shape
    units = op.inputs[1].shape[-1]
    gates = {b"lstm": 4, b"gru": 3}.get(op.get_attr("rnn_mode"), 1)
    if units is None or features is None:
        return None, {}, None
    per_step = gates * (features + units) * units
    sizes = {"inputs": features, "outputs": units}
    return times(steps, batch, per_step), sizes, max(features, units)


_PRODUCTS: dict[str, Callable[[Any], Described]] = {
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "Conv2DBackpropInput": _transposed_convolution,
    "Conv3DBackpropInputV2": _transposed_convolution,
    "DepthwiseConv2dNative": _depthwise_convolution,
    "CudnnRNNV2": _cudnn_recurrence,
    "CudnnRNNV3": _cudnn_recurrence,
}
