"""Every op that autocast runs in 16 bits: alone, fed by a low op, and back.

Each is given what a matrix product with the identity makes of its inputs,
which is these rounded, and compared with float32 of the rounded inputs.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

raw = tf.raw_ops

DTYPES = ("bfloat16", "float16")
SLOW = pytest.mark.slow
# Of the norm: some roundings of a number, each of at most half of this.
BOUNDS = {"bfloat16": 2**-7, "float16": 2**-10}

SQUARE = ((4, 6),)
PAIR = ((4, 6), (4, 6))
IMAGE = ((2, 6, 6, 4),)
VOLUME = ((2, 4, 4, 4, 3),)


@dataclasses.dataclass(frozen=True)
class Swept:
    """A use of an op.

    Args:
        call: Function of tensors that uses the op.
        shapes: The shapes of these.
        range: The least and the largest value in them.
        exact: Whether no value is rounded, if the inputs are 16-bit numbers.
        factor: How many times the bound the results may be off.
        gradient: Whether the op has a gradient.
        only: The 16-bit dtypes that it runs in on CPUs.
    """

    call: Callable
    shapes: tuple = SQUARE
    range: tuple[float, float] = (-2.0, 2.0)
    exact: bool = False
    factor: float = 1.0
    gradient: bool = True
    only: tuple[str, ...] = DTYPES


def gradient_of(function, count=1):
    """Returns the gradient of a function, as one of tensors and of its own.

    Args:
        function: Function of `count` tensors.
        count: How many tensors come before the gradient that comes in.
    """

    def gradient(*args):
        inputs, incoming = args[:count], args[count:]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.nest.flatten(function(*inputs))[: len(incoming)]
        return tape.gradient(outputs, inputs, list(incoming))

    return gradient


POSITIVE = (0.5, 2.0)
UNIT = (-0.9, 0.9)

FILTER = ((3, 3, 4, 4),)
FILTER3D = ((2, 2, 2, 3, 3),)
CONV = {"strides": [1, 1, 1, 1], "padding": "SAME"}
CONV3D = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
POOL3D = {
    "ksize": [1, 2, 2, 2, 1],
    "strides": [1, 2, 2, 2, 1],
    "padding": "VALID",
}
POOLED = ((2, 3, 3, 4),)
POOLED3D = ((2, 2, 2, 2, 3),)
SQUARES = ((2, 4, 4),)


def block_lstm(op):
    """Returns three steps of an LSTM of 4 features and 5 units."""

    def call(x, w, c, h):
        size = tf.zeros(5)
        peephole = {"wci": size, "wcf": size, "wco": size, "b": tf.zeros(20)}
        return op(
            seq_len_max=tf.constant(3, tf.int64),
            x=x,
            cs_prev=c,
            h_prev=h,
            w=w,
            use_peephole=False,
            **peephole,
        )[-1]

    return call


def block_lstm_gradient_v2(x, w, c, h, dh):
    """Returns the gradient of the weights: TensorFlow asks the other op."""
    given = {
        "seq_len_max": tf.constant(3, tf.int64),
        "x": x,
        "cs_prev": c,
        "h_prev": h,
        "w": w,
        "b": tf.zeros(20),
        "use_peephole": False,
        **PEEPHOLES,
    }
    outputs = raw.BlockLSTMV2(**given)._asdict()
    return raw.BlockLSTMGradV2(
        **given, **outputs, cs_grad=tf.zeros_like(dh), h_grad=dh
    ).w_grad


LSTM = ((3, 2, 4), (9, 20), (2, 5), (2, 5))
LSTM_GRADIENT = (*LSTM, (3, 2, 5))
PEEPHOLES = {name: tf.zeros(5).numpy() for name in ("wci", "wcf", "wco")}


def lstm_cell(x, w, c, h):
    return raw.LSTMBlockCell(
        x=x,
        cs_prev=c,
        h_prev=h,
        w=w,
        b=tf.zeros(20),
        use_peephole=False,
        **PEEPHOLES,
    )[1:]


def lstm_cell_gradient(x, w, c, h, dc, dh):
    i, cs, f, o, ci, co, _ = raw.LSTMBlockCell(
        x=x, cs_prev=c, h_prev=h, w=w, b=tf.zeros(20), **PEEPHOLES
    )
    return raw.LSTMBlockCellGrad(
        x=x,
        cs_prev=c,
        h_prev=h,
        w=w,
        b=tf.zeros(20),
        i=i,
        cs=cs,
        f=f,
        o=o,
        ci=ci,
        co=co,
        cs_grad=dc,
        h_grad=dh,
        use_peephole=False,
        **PEEPHOLES,
    )[1]


CELL = ((2, 4), (9, 20), (2, 5), (2, 5))

LOW = {
    "MatMul": Swept(tf.matmul, ((4, 6), (6, 5))),
    "BatchMatMul": Swept(
        lambda x, y: raw.BatchMatMul(x=x, y=y), ((2, 4, 6), (2, 6, 5))
    ),
    "BatchMatMulV2": Swept(tf.matmul, ((2, 4, 6), (2, 6, 5))),
    "BatchMatMulV3": Swept(
        lambda x, y: raw.BatchMatMulV3(x=x, y=y, Tout=tf.float32),
        ((2, 4, 6), (2, 6, 5)),
        only=("bfloat16",),
    ),
    "Einsum": Swept(
        lambda x, y: tf.einsum("bij,bjk->bki", x, y), ((2, 4, 6), (2, 6, 5))
    ),
    "Conv": Swept(
        lambda x, w: raw.Conv(input=x, filter=w, **CONV),
        IMAGE + FILTER,
        gradient=False,
    ),
    "Conv2D": Swept(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGE + FILTER),
    "Conv2DBackpropInput": Swept(
        lambda x, w: tf.nn.conv2d_transpose(x, w, (2, 6, 6, 4), 1, "SAME"),
        IMAGE + FILTER,
    ),
    "Conv2DBackpropFilter": Swept(
        gradient_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), 2),
        IMAGE + FILTER + IMAGE,
    ),
    "Conv3D": Swept(
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), VOLUME + FILTER3D
    ),
    "Conv3DBackpropInputV2": Swept(
        lambda x, w: tf.nn.conv3d_transpose(x, w, VOLUME[0], 1, "SAME"),
        VOLUME + FILTER3D,
    ),
    "Conv3DBackpropFilterV2": Swept(
        gradient_of(lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), 2),
        VOLUME + FILTER3D + VOLUME,
    ),
    "DepthwiseConv2dNative": Swept(
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        (*IMAGE, (3, 3, 4, 1)),
    ),
    "DepthwiseConv2dNativeBackpropInput": Swept(
        gradient_of(
            lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"), 2
        ),
        (*IMAGE, (3, 3, 4, 1), *IMAGE),
    ),
    "DepthwiseConv2dNativeBackpropFilter": Swept(
        gradient_of(
            lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"), 2
        ),
        (*IMAGE, (3, 3, 4, 1), *IMAGE),
    ),
    "BlockLSTM": Swept(
        block_lstm(raw.BlockLSTM), LSTM, factor=4, only=("float16",)
    ),
    "BlockLSTMV2": Swept(
        block_lstm(raw.BlockLSTMV2), LSTM, factor=4, only=("float16",)
    ),
    "BlockLSTMGrad": Swept(
        gradient_of(block_lstm(raw.BlockLSTM), 4),
        LSTM_GRADIENT,
        factor=4,
        gradient=False,
        only=("float16",),
    ),
    "BlockLSTMGradV2": Swept(
        block_lstm_gradient_v2,
        LSTM_GRADIENT,
        factor=4,
        gradient=False,
        only=("float16",),
    ),
    "LSTMBlockCell": Swept(lstm_cell, CELL, gradient=False, only=("float16",)),
    "LSTMBlockCellGrad": Swept(
        lstm_cell_gradient,
        (*CELL, (2, 5), (2, 5)),
        factor=4,
        gradient=False,
        only=("float16",),
    ),
}


def norm(op):
    """Returns a batch normalization of images."""

    def call(x):
        return op(
            x=x,
            scale=tf.constant([1.0, 0.5, 2.0, 1.5]),
            offset=tf.constant([0.5, 1.0, -1.0, 0.0]),
            mean=tf.zeros(0),
            variance=tf.zeros(0),
            is_training=True,
        )[0]

    return call


INDICES = np.array([[2], [0]], "int32")
ROWS = ((4, 6), (2, 6))

WIDEST = {
    "Add": Swept(lambda x, y: raw.Add(x=x, y=y), PAIR),
    "AddV2": Swept(lambda x, y: x + y, PAIR),
    "AddN": Swept(lambda x, y: tf.add_n([x, y, x]), PAIR),
    "Sub": Swept(lambda x, y: x - y, PAIR),
    "Mul": Swept(lambda x, y: x * y, PAIR),
    "MulNoNan": Swept(tf.math.multiply_no_nan, PAIR),
    "Div": Swept(lambda x, y: raw.Div(x=x, y=y), PAIR, POSITIVE),
    "RealDiv": Swept(lambda x, y: x / y, PAIR, POSITIVE),
    "DivNoNan": Swept(tf.math.divide_no_nan, PAIR, POSITIVE),
    "FloorDiv": Swept(
        lambda x, y: x // y, PAIR, POSITIVE, exact=True, gradient=False
    ),
    "TruncateDiv": Swept(
        lambda x, y: tf.truncatediv(x, y),
        PAIR,
        POSITIVE,
        exact=True,
        gradient=False,
    ),
    "Mod": Swept(
        lambda x, y: raw.Mod(x=x, y=y), PAIR, POSITIVE, gradient=False, only=()
    ),
    "FloorMod": Swept(lambda x, y: x % y, PAIR, POSITIVE),
    "TruncateMod": Swept(tf.truncatemod, PAIR, gradient=False, only=()),
    "Maximum": Swept(tf.maximum, PAIR, exact=True),
    "Minimum": Swept(tf.minimum, PAIR, exact=True),
    "Atan2": Swept(tf.atan2, PAIR, POSITIVE),
    "NextAfter": Swept(tf.math.nextafter, PAIR, gradient=False, only=()),
    "BiasAdd": Swept(lambda x, y: tf.nn.bias_add(x, y[0]), ((4, 6), (1, 6))),
    "BiasAddV1": Swept(
        lambda x, y: raw.BiasAddV1(value=x, bias=y[0]), ((4, 6), (1, 6))
    ),
    "ClipByValue": Swept(
        lambda x, y, z: raw.ClipByValue(
            t=x, clip_value_min=-tf.abs(y), clip_value_max=tf.abs(z)
        ),
        ((4, 6),) * 3,
        exact=True,
    ),
    "Tanh": Swept(tf.tanh),
    "TanhGrad": Swept(gradient_of(tf.tanh), PAIR, factor=2),
    "Sigmoid": Swept(tf.sigmoid),
    "SigmoidGrad": Swept(gradient_of(tf.sigmoid), PAIR, factor=2),
    "Elu": Swept(tf.nn.elu),
    "EluGrad": Swept(gradient_of(tf.nn.elu), PAIR),
    "Selu": Swept(tf.nn.selu),
    "SeluGrad": Swept(gradient_of(tf.nn.selu), PAIR, factor=2),
    "LeakyRelu": Swept(tf.nn.leaky_relu),
    "LeakyReluGrad": Swept(gradient_of(tf.nn.leaky_relu), PAIR),
    "Softsign": Swept(tf.nn.softsign),
    "SoftsignGrad": Swept(gradient_of(tf.nn.softsign), PAIR, gradient=False),
    "Erf": Swept(tf.math.erf),
    "Erfc": Swept(tf.math.erfc),
    "Sqrt": Swept(tf.sqrt, SQUARE, POSITIVE),
    "SqrtGrad": Swept(gradient_of(tf.sqrt), PAIR, POSITIVE, factor=2),
    "Sin": Swept(tf.sin),
    "Cos": Swept(tf.cos),
    "Atan": Swept(tf.atan),
    "FusedBatchNorm": Swept(norm(raw.FusedBatchNorm), IMAGE, only=()),
    "FusedBatchNormV2": Swept(norm(raw.FusedBatchNormV2), IMAGE),
    "FusedBatchNormV3": Swept(norm(raw.FusedBatchNormV3), IMAGE),
    "FusedBatchNormGrad": Swept(
        gradient_of(norm(raw.FusedBatchNorm)), IMAGE + IMAGE, only=()
    ),
    "FusedBatchNormGradV2": Swept(
        gradient_of(norm(raw.FusedBatchNormV2)), IMAGE + IMAGE
    ),
    "FusedBatchNormGradV3": Swept(
        gradient_of(norm(raw.FusedBatchNormV3)), IMAGE + IMAGE
    ),
    "Concat": Swept(
        lambda x, y: raw.Concat(concat_dim=0, values=[x, y]), PAIR, exact=True
    ),
    "ConcatV2": Swept(lambda x, y: tf.concat([x, y], 1), PAIR, exact=True),
    "Pack": Swept(lambda x, y: tf.stack([x, y], 1), PAIR, exact=True),
    "ParallelConcat": Swept(
        lambda x, y: raw.ParallelConcat(values=[x, y], shape=(2, 6)),
        ((1, 6), (1, 6)),
        exact=True,
        gradient=False,
    ),
    "DynamicStitch": Swept(
        lambda x, y: raw.DynamicStitch(
            indices=[[0, 2, 4, 6], [1, 3, 5, 7]], data=[x, y]
        ),
        PAIR,
        exact=True,
    ),
    "ParallelDynamicStitch": Swept(
        lambda x, y: raw.ParallelDynamicStitch(
            indices=[[0, 2, 4, 6], [1, 3, 5, 7]], data=[x, y]
        ),
        PAIR,
        exact=True,
    ),
    "Select": Swept(
        lambda x, y: raw.Select(condition=x > y, x=x, y=y), PAIR, exact=True
    ),
    "SelectV2": Swept(lambda x, y: tf.where(x > 0, x, y), PAIR, exact=True),
    "TensorScatterMax": Swept(
        lambda x, y: tf.tensor_scatter_nd_max(x, INDICES, y), ROWS, exact=True
    ),
    "TensorScatterMin": Swept(
        lambda x, y: tf.tensor_scatter_nd_min(x, INDICES, y), ROWS, exact=True
    ),
    "TensorScatterUpdate": Swept(
        lambda x, y: tf.tensor_scatter_nd_update(x, INDICES, y),
        ROWS,
        exact=True,
    ),
    "TensorStridedSliceUpdate": Swept(
        lambda x, y: raw.TensorStridedSliceUpdate(
            input=x, begin=[1], end=[3], strides=[1], value=y
        ),
        ROWS,
        exact=True,
    ),
}


def exact(call, shapes=SQUARE, **others):
    """Returns the use of an op that only moves values."""
    return Swept(call, shapes, exact=True, **others)


def compared(op):
    """Returns the use of an op that gives no floats."""
    return exact(lambda x, y: op(x=x, y=y), PAIR, gradient=False)


def asked(call, shapes=SQUARE, **others):
    return exact(call, shapes, gradient=False, **others)


SEGMENTS = [0, 0, 2, 2]
DIAGONAL = {"k": 0, "num_rows": 6, "num_cols": 6, "padding_value": 0.0}

NEUTRAL = {
    "Identity": exact(tf.identity),
    "IdentityN": exact(lambda x, y: tf.identity_n([x, y]), PAIR),
    "StopGradient": asked(tf.stop_gradient),
    "PreventGradient": asked(lambda x: raw.PreventGradient(input=x)),
    "Snapshot": asked(lambda x: raw.Snapshot(input=x)),
    "EnsureShape": exact(lambda x: raw.EnsureShape(input=x, shape=(4, None))),
    "Reshape": exact(lambda x: tf.reshape(x, (-1, 3))),
    "Transpose": exact(tf.transpose),
    "ConjugateTranspose": exact(
        lambda x: raw.ConjugateTranspose(x=x, perm=[1, 0])
    ),
    "ExpandDims": exact(lambda x: tf.expand_dims(x, 1)),
    "Squeeze": exact(tf.squeeze, ((4, 1, 6),)),
    "Shape": asked(lambda x: raw.Shape(input=x)),
    "ShapeN": asked(lambda x, y: raw.ShapeN(input=[x, y]), PAIR),
    "Size": asked(lambda x: raw.Size(input=x)),
    "Rank": asked(lambda x: raw.Rank(input=x)),
    "Gather": exact(lambda x: raw.Gather(params=x, indices=[2, 0, 2])),
    "GatherV2": exact(lambda x: tf.gather(x, [2, 0, 2], axis=1)),
    "GatherNd": exact(lambda x: tf.gather_nd(x, [[2, 1], [0, 3], [2, 1]])),
    "Slice": exact(lambda x: tf.slice(x, [1, 2], [2, 3])),
    "StridedSlice": exact(lambda x: x[1:, ::2]),
    "StridedSliceGrad": exact(
        lambda x: raw.StridedSliceGrad(
            shape=[9, 6], begin=[1], end=[9], strides=[2], dy=x
        )
    ),
    "Split": exact(lambda x: tf.split(x, 2, axis=1)),
    "SplitV": exact(lambda x: tf.split(x, [1, 2, 3], axis=1)),
    "Unpack": exact(lambda x: tf.unstack(x, axis=1)),
    "Reverse": asked(lambda x: raw.Reverse(tensor=x, dims=[True, False])),
    "ReverseV2": exact(lambda x: tf.reverse(x, [1])),
    "ReverseSequence": exact(
        lambda x: tf.reverse_sequence(x, [2, 3, 1, 6], seq_axis=1)
    ),
    "Roll": exact(lambda x: tf.roll(x, 2, 1)),
    # Whose gradients are sums, float32 in the place of float16.
    "Tile": exact(lambda x: tf.tile(x, (2, 1)), only=("bfloat16",)),
    "BroadcastTo": exact(
        lambda x: tf.broadcast_to(x, (5, 4, 6)), only=("bfloat16",)
    ),
    "Pad": exact(lambda x: tf.pad(x, [[1, 2], [0, 1]])),
    "PadV2": exact(
        lambda x: raw.PadV2(
            input=x, paddings=[[1, 2], [0, 1]], constant_values=0.5
        )
    ),
    "MirrorPad": exact(lambda x: tf.pad(x, [[1, 2], [0, 1]], "REFLECT")),
    "MirrorPadGrad": Swept(
        gradient_of(lambda x: tf.pad(x, [[1, 2], [0, 1]], "REFLECT")),
        ((4, 6), (7, 7)),
    ),
    "SpaceToBatch": exact(
        lambda x: raw.SpaceToBatch(
            input=x, paddings=[[0, 0], [0, 0]], block_size=2
        ),
        IMAGE,
    ),
    "SpaceToBatchND": exact(
        lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), IMAGE
    ),
    "BatchToSpace": exact(
        lambda x: raw.BatchToSpace(
            input=x, crops=[[0, 0], [0, 0]], block_size=2
        ),
        ((4, 3, 3, 2),),
    ),
    "BatchToSpaceND": exact(
        lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]]),
        ((4, 3, 3, 2),),
    ),
    "SpaceToDepth": exact(lambda x: tf.nn.space_to_depth(x, 2), IMAGE),
    "DepthToSpace": exact(lambda x: tf.nn.depth_to_space(x, 2), IMAGE),
    "ExtractImagePatches": exact(
        lambda x: tf.image.extract_patches(
            x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
        ),
        IMAGE,
    ),
    "MatrixBandPart": exact(lambda x: tf.linalg.band_part(x, 1, 0), SQUARES),
    "MatrixDiag": exact(lambda x: raw.MatrixDiag(diagonal=x)),
    "MatrixDiagV2": exact(lambda x: raw.MatrixDiagV2(diagonal=x, **DIAGONAL)),
    "MatrixDiagV3": exact(lambda x: raw.MatrixDiagV3(diagonal=x, **DIAGONAL)),
    "MatrixDiagPart": exact(lambda x: raw.MatrixDiagPart(input=x), SQUARES),
    "MatrixDiagPartV2": exact(
        lambda x: raw.MatrixDiagPartV2(input=x, k=0, padding_value=0.0),
        SQUARES,
    ),
    "MatrixDiagPartV3": exact(
        lambda x: raw.MatrixDiagPartV3(input=x, k=0, padding_value=0.0),
        SQUARES,
    ),
    "MatrixSetDiag": exact(
        lambda x, y: raw.MatrixSetDiag(input=x, diagonal=y),
        (*SQUARES, (2, 4)),
    ),
    "MatrixSetDiagV2": exact(
        lambda x, y: raw.MatrixSetDiagV2(input=x, diagonal=y, k=0),
        (*SQUARES, (2, 4)),
    ),
    "MatrixSetDiagV3": exact(
        lambda x, y: raw.MatrixSetDiagV3(input=x, diagonal=y, k=0),
        (*SQUARES, (2, 4)),
    ),
    "Diag": exact(lambda x: raw.Diag(diagonal=x), only=("float16",)),
    "DiagPart": exact(
        lambda x: raw.DiagPart(input=x), ((4, 4),), only=("float16",)
    ),
    "Relu": exact(tf.nn.relu),
    "ReluGrad": exact(gradient_of(tf.nn.relu), PAIR),
    "Relu6": exact(tf.nn.relu6),
    "Relu6Grad": exact(gradient_of(tf.nn.relu6), PAIR),
    "Abs": exact(tf.abs),
    "Neg": exact(tf.negative),
    "Sign": exact(tf.sign),
    "Floor": asked(tf.floor),
    "Ceil": asked(tf.math.ceil),
    "Round": asked(tf.round),
    "Rint": asked(tf.math.rint, only=()),
    "MaxPool": exact(lambda x: raw.MaxPool(input=x, **POOL), IMAGE),
    "MaxPoolV2": exact(lambda x: raw.MaxPoolV2(input=x, **POOL), IMAGE),
    "MaxPoolGrad": exact(
        gradient_of(lambda x: raw.MaxPool(input=x, **POOL)), IMAGE + POOLED
    ),
    "MaxPoolGradV2": exact(
        gradient_of(lambda x: raw.MaxPoolV2(input=x, **POOL)), IMAGE + POOLED
    ),
    "MaxPoolGradGrad": exact(
        gradient_of(gradient_of(lambda x: raw.MaxPool(input=x, **POOL)), 2),
        IMAGE + POOLED + IMAGE,
    ),
    "MaxPool3D": exact(
        lambda x: raw.MaxPool3D(input=x, **POOL3D), VOLUME, only=("bfloat16",)
    ),
    "MaxPool3DGrad": exact(
        gradient_of(lambda x: raw.MaxPool3D(input=x, **POOL3D)),
        VOLUME + POOLED3D,
        only=("bfloat16",),
    ),
    "MaxPoolWithArgmax": exact(
        lambda x: raw.MaxPoolWithArgmax(input=x, **POOL)[0], IMAGE
    ),
    "Max": exact(lambda x: tf.reduce_max(x, 1)),
    "Min": exact(lambda x: tf.reduce_min(x, 1)),
    "ArgMax": asked(lambda x: tf.argmax(x, 1)),
    "ArgMin": asked(lambda x: tf.argmin(x, 1)),
    "TopKV2": exact(lambda x: tf.math.top_k(x, 2)[0]),
    "SegmentMax": exact(lambda x: tf.math.segment_max(x, SEGMENTS)),
    "SegmentMin": exact(lambda x: tf.math.segment_min(x, SEGMENTS)),
    "UnsortedSegmentMax": exact(
        lambda x: tf.math.unsorted_segment_max(x, [2, 0, 2, 1], 3)
    ),
    "UnsortedSegmentMin": exact(
        lambda x: tf.math.unsorted_segment_min(x, [2, 0, 2, 1], 3)
    ),
    "Equal": compared(raw.Equal),
    "NotEqual": compared(raw.NotEqual),
    "ApproximateEqual": asked(
        lambda x, y: tf.raw_ops.ApproximateEqual(x=x, y=y), PAIR, only=()
    ),
    "Less": compared(raw.Less),
    "LessEqual": compared(raw.LessEqual),
    "Greater": compared(raw.Greater),
    "GreaterEqual": compared(raw.GreaterEqual),
    "IsFinite": asked(tf.math.is_finite),
    "IsInf": asked(tf.math.is_inf),
    "IsNan": asked(tf.math.is_nan),
    "CheckNumerics": exact(lambda x: raw.CheckNumerics(tensor=x, message="")),
    "CheckNumericsV2": exact(
        lambda x: raw.CheckNumericsV2(tensor=x, message="")
    ),
    "ZerosLike": asked(lambda x: raw.ZerosLike(x=x)),
    "OnesLike": asked(lambda x: raw.OnesLike(x=x)),
    "Fill": exact(lambda x: tf.fill((5, 2), x[1, 2]), factor=2),
    "Cast": exact(lambda x: tf.cast(x, tf.float64)),
    "OneHot": asked(
        lambda x: raw.OneHot(
            indices=[1, 2], depth=4, on_value=x[0, 0], off_value=x[1, 1]
        )
    ),
    "Unique": asked(lambda x: tf.unique(tf.reshape(x, (-1,)))),
    "UniqueV2": asked(lambda x: raw.UniqueV2(x=x, axis=[0])),
    "DynamicPartition": exact(
        lambda x: tf.dynamic_partition(x, [0, 1, 1, 0], 2)
    ),
}

SWEPT = {**LOW, **WIDEST, **NEUTRAL}

NO_CPU = "no kernel for CPUs"
NOT_SWEPT = {
    **dict.fromkeys(
        (
            "CudnnRNN",
            "CudnnRNNV2",
            "CudnnRNNV3",
            "CudnnRNNBackprop",
            "CudnnRNNBackpropV2",
            "CudnnRNNBackpropV3",
        ),
        NO_CPU,
    ),
    "GRUBlockCell": "takes float32 alone",
    "GRUBlockCellGrad": "takes float32 alone",
    "InTopK": "takes float32 alone",
    "InTopKV2": "takes float32 alone",
    "InvertPermutation": "takes integers",
}


FULL = {
    "Exp": Swept(tf.exp),
    "Expm1": Swept(tf.math.expm1),
    "Log": Swept(tf.math.log, SQUARE, POSITIVE),
    "Log1p": Swept(tf.math.log1p, SQUARE, POSITIVE),
    "Pow": Swept(tf.pow, PAIR, POSITIVE),
    "Reciprocal": Swept(tf.math.reciprocal, SQUARE, POSITIVE),
    "Rsqrt": Swept(tf.math.rsqrt, SQUARE, POSITIVE),
    "Square": Swept(tf.square),
    "SquaredDifference": Swept(tf.math.squared_difference, PAIR),
    "Softplus": Swept(tf.math.softplus),
    "Softmax": Swept(tf.nn.softmax),
    "LogSoftmax": Swept(tf.nn.log_softmax),
    "Sinh": Swept(tf.sinh),
    "Cosh": Swept(tf.cosh),
    "Tan": Swept(tf.tan, SQUARE, UNIT),
    "Acos": Swept(tf.acos, SQUARE, UNIT),
    "Asin": Swept(tf.asin, SQUARE, UNIT),
    "Acosh": Swept(tf.acosh, SQUARE, (1.5, 2.0)),
    "Asinh": Swept(tf.asinh),
    "Atanh": Swept(tf.atanh, SQUARE, UNIT),
    "Erfinv": Swept(tf.math.erfinv, SQUARE, UNIT),
    "Lgamma": Swept(tf.math.lgamma, SQUARE, (2.5, 4.0)),
    "Digamma": Swept(tf.math.digamma, SQUARE, (2.5, 4.0)),
    "Igamma": Swept(tf.math.igamma, PAIR, POSITIVE),
    "BesselI0e": Swept(tf.math.bessel_i0e),
    "Xlogy": Swept(tf.math.xlogy, PAIR, POSITIVE),
    "Xdivy": Swept(tf.math.xdivy, PAIR, POSITIVE),
    "SoftmaxCrossEntropyWithLogits": Swept(
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x), PAIR
    ),
    "SparseSoftmaxCrossEntropyWithLogits": Swept(
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(SEGMENTS, x)
    ),
    "L2Loss": Swept(tf.nn.l2_loss),
    "Sum": Swept(lambda x: tf.reduce_sum(x, 1)),
    "Mean": Swept(lambda x: tf.reduce_mean(x, 1)),
    "Prod": Swept(lambda x: tf.reduce_prod(x, 1), SQUARE, POSITIVE),
    "EuclideanNorm": Swept(
        lambda x: tf.math.reduce_euclidean_norm(x, 1), SQUARE, POSITIVE
    ),
    "Cumsum": Swept(lambda x: tf.cumsum(x, 1)),
    "Cumprod": Swept(lambda x: tf.math.cumprod(x, 1), SQUARE, POSITIVE),
    "CumulativeLogsumexp": Swept(lambda x: tf.math.cumulative_logsumexp(x, 1)),
    "SegmentSum": Swept(lambda x: tf.math.segment_sum(x, SEGMENTS)),
    "SegmentMean": Swept(lambda x: tf.math.segment_mean(x, SEGMENTS)),
    "UnsortedSegmentSum": Swept(
        lambda x: tf.math.unsorted_segment_sum(x, SEGMENTS, 3)
    ),
    "SparseSegmentSum": Swept(
        lambda x: tf.sparse.segment_sum(x, [0, 1, 3], [0, 0, 1])
    ),
    "SparseSegmentMean": Swept(
        lambda x: tf.sparse.segment_mean(x, [0, 1, 3], [0, 0, 1])
    ),
    "LRN": Swept(tf.nn.local_response_normalization, IMAGE),
    "FakeQuantWithMinMaxArgs": Swept(
        tf.quantization.fake_quant_with_min_max_args
    ),
    "ResizeBilinear": Swept(
        lambda x: raw.ResizeBilinear(images=x, size=[3, 9]), IMAGE
    ),
    "ResizeNearestNeighbor": Swept(
        lambda x: raw.ResizeNearestNeighbor(images=x, size=[3, 9]), IMAGE
    ),
    "CropAndResize": Swept(
        lambda x: tf.image.crop_and_resize(
            x, [[0.1, 0.2, 0.7, 0.9]], [1], [3, 3]
        ),
        IMAGE,
    ),
    "BiasAddGrad": Swept(
        gradient_of(lambda x, b: tf.nn.bias_add(x, b[0]), 2),
        ((4, 6), (1, 6), (4, 6)),
    ),
    "AvgPool": Swept(lambda x: raw.AvgPool(value=x, **POOL), IMAGE),
    "AvgPoolGrad": Swept(
        gradient_of(lambda x: raw.AvgPool(value=x, **POOL)), IMAGE + POOLED
    ),
    "AvgPool3D": Swept(
        lambda x: raw.AvgPool3D(input=x, **POOL3D),
        VOLUME,
    ),
    "AvgPool3DGrad": Swept(
        gradient_of(lambda x: raw.AvgPool3D(input=x, **POOL3D)),
        VOLUME + POOLED3D,
    ),
    "Where": Swept(
        lambda x: raw.Where(condition=tf.nn.relu(x)),
        gradient=False,
    ),
    "TensorScatterAdd": Swept(
        lambda x, y: tf.tensor_scatter_nd_add(x, INDICES, y), ROWS
    ),
    "TensorScatterSub": Swept(
        lambda x, y: tf.tensor_scatter_nd_sub(x, INDICES, y), ROWS
    ),
    "ScatterNd": Swept(
        lambda x: tf.scatter_nd(INDICES, x, [5, 6]),
        ((2, 6),),
    ),
    "Cholesky": Swept(
        lambda x: tf.linalg.cholesky(
            tf.linalg.set_diag(
                raw.MatrixBandPart(input=x, num_lower=-1, num_upper=0),
                [[9.0] * 4] * 2,
            )
        ),
        SQUARES,
    ),
    "MatrixInverse": Swept(
        lambda x: tf.linalg.inv(tf.linalg.set_diag(x, [[9.0] * 4] * 2)),
        SQUARES,
    ),
    "MatrixDeterminant": Swept(
        lambda x: tf.linalg.det(tf.linalg.set_diag(x, [[9.0] * 4] * 2)),
        SQUARES,
    ),
    "Cross": Swept(tf.linalg.cross, ((4, 3), (4, 3))),
    "RFFT": Swept(lambda x: tf.abs(tf.signal.rfft(x))),
    "Complex": Swept(lambda x, y: tf.abs(tf.complex(x, y)), PAIR),
}


def inputs_of(each):
    """Returns the inputs of a use; none has equal values, also rounded."""
    random = np.random.default_rng(0)
    step = 2**-7  # of bfloat16 below 2
    grid = np.arange(*each.range, step)
    inputs = []
    for shape in each.shapes:
        size = np.prod(shape)
        value = random.choice(grid, size, replace=False)
        value += random.uniform(-0.4, 0.4, size) * step
        inputs.append(value.reshape(shape).astype("float32"))
    return inputs


def identity(value):
    return np.eye(value.shape[-1], dtype="float32")


def rounded(values, dtype):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    return [value.astype(dtype).astype("float32") for value in values]


def floats(structure):
    flat = tf.nest.flatten(structure)
    return [value for value in flat if value.dtype.is_floating]


def fed_by_low_ops(call):
    """Returns a function whose inputs a matrix product rounds first.

    AutoGraph leaves it, because it would read a whole table for a function.
    """

    @tf.autograph.experimental.do_not_convert
    def function(*inputs):
        return call(*[tf.matmul(x, identity(x)) for x in inputs])

    return function


def autocast(each, dtype):
    return mp.autocast(fed_by_low_ops(each.call), dtype)


def values_and_gradients(function, inputs, gradient):
    """Returns what a function gives, and the gradients of its floats."""
    inputs = [tf.constant(value) for value in inputs]
    if not gradient:
        return tf.nest.flatten(function(*inputs)), []
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = function(*inputs)
    outputs = floats(results)
    incoming = [
        tf.cast(tf.random.stateless_normal(value.shape, (0, 7)), value.dtype)
        for value in outputs
    ]
    gradients = tape.gradient(outputs, inputs, incoming)
    # An input that only chooses among others has none.
    return tf.nest.flatten(results), gradients


def float_dtypes(op):
    """Returns the dtypes of the floats that an op takes and gives."""
    return [
        tensor.dtype.name
        for tensor in (*op.inputs, *op.outputs)
        if tensor.dtype.is_floating
    ]


def ops_of(function, inputs, op_type):
    """Returns the ops of a type in the graph of a function."""
    graph = function.get_concrete_function(*inputs).graph
    return [
        op
        for op in graph.get_operations()
        # Not those that only give a result.
        if op.type == op_type and any(x.consumers() for x in op.outputs)
    ]


def assert_near(got, expected, bound):
    assert got.dtype == expected.dtype
    got, expected = (tf.convert_to_tensor(x).numpy() for x in (got, expected))
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    error = np.linalg.norm(got - expected)
    assert error <= bound * max(np.linalg.norm(expected), 1e-6)


def in_both(table, often=()):
    """Parametrizes: bfloat16, and float16 where told or else with the slow.

    Args:
        table: Dict from the types of ops to the uses of them.
        often: The ops whose float16 is not left to the slow tests.
    """
    return pytest.mark.parametrize(
        ("op_type", "dtype"),
        [
            pytest.param(
                op_type,
                dtype,
                marks=()
                if dtype == "bfloat16"
                or op_type in often
                or table[op_type].only != DTYPES
                else SLOW,
            )
            for op_type in table
            for dtype in DTYPES
        ],
    )


@in_both(SWEPT, ("MatMul", "Conv2D", "AddV2", "Tanh"))
def test_an_op_fed_by_a_low_one(op_type, dtype):
    each = SWEPT[op_type]
    inputs = inputs_of(each)
    function = autocast(each, dtype)
    values, gradients = values_and_gradients(function, inputs, each.gradient)
    expected_values, expected_gradients = values_and_gradients(
        each.call, rounded(inputs, dtype), each.gradient
    )
    bound = each.factor * BOUNDS[dtype]
    for got, expected in zip(values, expected_values, strict=True):
        assert_near(got, expected, 0 if each.exact else bound)
    for got, expected in zip(gradients, expected_gradients, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert_near(got, expected, bound)
    assert not each.gradient or any(x is not None for x in gradients)

    ops = ops_of(function, inputs, op_type)
    assert ops
    for op in ops:
        found = set(float_dtypes(op))
        if dtype not in each.only:
            assert found == {"float32"}
        else:
            assert op.inputs[0].dtype == dtype or dtype in found
            if op_type not in MIXED:
                assert found == {dtype}


# Ops that give or take other floats as well: statistics, or what is asked.
MIXED = (
    "FusedBatchNormV2",
    "FusedBatchNormV3",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    "Cast",
)


@in_both(FULL)
def test_a_full_op_fed_by_a_low_one(op_type, dtype):
    each = FULL[op_type]
    inputs = inputs_of(each)
    function = autocast(each, dtype)
    values, _ = values_and_gradients(function, inputs, False)
    expected_values, _ = values_and_gradients(
        each.call, rounded(inputs, dtype), False
    )
    # What is cast back is not rounded again.
    for got, expected in zip(values, expected_values, strict=True):
        assert_near(got, expected, 1e-5)

    ops = ops_of(function, inputs, op_type)
    assert ops
    for op in ops:
        assert set(float_dtypes(op)) <= {"float32"}
    low = {
        op.inputs[0].op.type
        for op in function.get_concrete_function(*inputs).graph.get_operations()
        if op.type == "Cast" and op.inputs[0].dtype == dtype
    }
    assert low  # a low tensor came, and was cast back


def test_the_table_of_full_ops_names_full_ops():
    assert set(FULL) <= set(mp.op_lists.DEFAULT.names("full"))
    assert len(FULL) >= 40


def test_every_op_is_swept():
    lists = mp.op_lists.DEFAULT
    for category, table in (
        ("low", LOW),
        ("widest", WIDEST),
        ("neutral", NEUTRAL),
    ):
        names = set(lists.names(category))
        assert set(table) <= names
        assert names - set(table) <= set(NOT_SWEPT)
    assert not set(NOT_SWEPT) & set(SWEPT)
    assert set(NOT_SWEPT) <= set(lists.categories)


# Sums of many values, forward and in gradients, are no 16-bit sums: in
# bfloat16 these do not come beyond 256.

MANY = 4096
SUM_BOUND = 2**-6


def low_row(row):
    return tf.matmul(row[None], tf.eye(8))


def matmul(x):
    return tf.matmul(x, tf.eye(8))


ZEROS = np.zeros(MANY, "int32")

in_16_bits = pytest.mark.parametrize(
    ("dtype", "jit_compile"),
    [
        pytest.param("bfloat16", False, id="bfloat16"),
        pytest.param("float16", False, id="float16", marks=SLOW),
        pytest.param("bfloat16", True, id="bfloat16-xla", marks=SLOW),
        pytest.param("float16", True, id="float16-xla", marks=SLOW),
    ],
)

# Functions of many rows and one row; the gradient of the row is a sum.
SUMMED_GRADIENTS = {
    "AddV2": lambda x, row: matmul(x) + row,
    "BiasAdd": lambda x, row: tf.nn.bias_add(matmul(x), row),
    "BroadcastTo": lambda x, row: tf.broadcast_to(low_row(row), (MANY, 8)),
    "Tile": lambda x, row: tf.tile(low_row(row), (MANY, 1)),
    "GatherV2": lambda x, row: tf.gather(low_row(row), ZEROS),
    "GatherNd": lambda x, row: tf.gather_nd(low_row(row), ZEROS[:, None]),
}

# Functions of many rows whose result is their sum or mean.
SUMMED = {
    "ScatterNd": lambda x: tf.scatter_nd(ZEROS[:, None], x, (1, 8)),
    "TensorScatterAdd": lambda x: tf.tensor_scatter_nd_add(
        tf.zeros((1, 8)), ZEROS[:, None], x
    ),
    "TensorScatterSub": lambda x: (
        -tf.tensor_scatter_nd_sub(tf.zeros((1, 8)), ZEROS[:, None], x)
    ),
    "Sum": lambda x: tf.reduce_sum(x, 0, keepdims=True),
    "MatMul": lambda x: tf.matmul(tf.ones((1, MANY)), x),
    "Einsum": lambda x: tf.einsum("ij->j", x)[None],
    "AddN": lambda x: tf.reduce_sum(
        tf.add_n(tf.unstack(tf.reshape(x, (64, 64, 8)))), 0, keepdims=True
    ),
    "AvgPool": lambda x: (
        MANY
        * tf.nn.avg_pool2d(tf.reshape(x, (1, 64, 64, 8)), 64, 64, "VALID")[0, 0]
    ),
    "AvgPool3D": lambda x: (
        MANY
        * tf.nn.avg_pool3d(tf.reshape(x, (1, 16, 16, 16, 8)), 16, 16, "VALID")[
            0, 0, 0
        ]
    ),
}


def many_rows(dtype):
    """Returns rows around 1, and the sum of them as rounded to a dtype."""
    rows = 1 + np.random.default_rng(0).standard_normal((MANY, 8))
    rows = rows.astype("float32")
    (exact,) = rounded([rows], dtype)
    return tf.constant(rows), exact.astype("float64").sum(0)


def relative_error(got, expected):
    got = np.asarray(got, "float64").reshape(expected.shape)
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@in_16_bits
@pytest.mark.parametrize("op_type", SUMMED_GRADIENTS)
def test_the_gradient_of_what_is_used_often(op_type, dtype, jit_compile):
    row = tf.Variable(tf.zeros(8))
    call = SUMMED_GRADIENTS[op_type]
    function = mp.autocast(lambda x: call(x, row), dtype)

    @tf.function(jit_compile=jit_compile)
    def gradient(x, incoming):
        with tf.GradientTape() as tape:
            result = function(x)
        return tape.gradient(result, row, incoming)

    rows, total = many_rows(dtype)
    assert ops_of(function, [rows], op_type)
    assert relative_error(gradient(rows, rows), total) < SUM_BOUND


@in_16_bits
@pytest.mark.parametrize("op_type", SUMMED)
def test_the_sum_of_many_values(op_type, dtype, jit_compile):
    call = SUMMED[op_type]
    function = mp.autocast(lambda x: call(matmul(x)), dtype)
    rows, total = many_rows(dtype)
    assert ops_of(function, [rows], op_type)
    result = tf.function(function.__call__, jit_compile=jit_compile)(rows)
    assert relative_error(result, total) < SUM_BOUND


@in_16_bits
def test_the_gradient_of_a_value_used_a_hundred_times(dtype, jit_compile):
    """TensorFlow adds these by `AddN`, or in XLA one after the other."""
    function = mp.autocast(
        lambda x: tf.stack([h * 1.0 for h in [matmul(x)] * 100]), dtype
    )

    @tf.function(jit_compile=jit_compile)
    def gradient(x, incoming):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
        return tape.gradient(result, x, incoming)

    rows, _ = many_rows(dtype)
    incoming = tf.reshape(rows[:1600], (100, 16, 8))
    (exact,) = rounded([incoming.numpy()], dtype)
    got = gradient(rows[:16], incoming)
    assert relative_error(got, exact.astype("float64").sum(0)) < SUM_BOUND


@in_16_bits
def test_the_gradient_of_averages_that_overlap(dtype, jit_compile):
    """Each value is in 17 x 17 averages."""
    function = mp.autocast(
        lambda x: tf.nn.avg_pool2d(matmul(x), 17, 1, "SAME"), dtype
    )

    @tf.function(jit_compile=jit_compile)
    def gradient(x, incoming):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
        return tape.gradient(result, x, incoming)

    rows, _ = many_rows(dtype)
    images = tf.reshape(rows[:2048], (2, 32, 32, 8))
    (exact,) = rounded([images.numpy()], dtype)
    expected = raw.AvgPoolGrad(
        orig_input_shape=images.shape,
        grad=tf.constant(exact, tf.float64),
        ksize=[1, 17, 17, 1],
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    got = gradient(images, images)
    assert relative_error(got, expected.numpy()) < SUM_BOUND


def test_the_gradient_of_a_bias_where_the_rank_is_unknown():
    weight, bias = tf.Variable(tf.eye(8)), tf.Variable(tf.zeros(8))
    function = mp.autocast(
        lambda x: tf.nn.bias_add(tf.matmul(x, weight), bias),
        "bfloat16",
        input_signature=[tf.TensorSpec(None)],
    )
    with tf.GradientTape() as tape:
        result = function(tf.ones((2, 512, 8)))
    gradient = tape.gradient(result, bias)
    np.testing.assert_array_equal(gradient, [1024.0] * 8)
