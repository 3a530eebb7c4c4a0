"""Functions of many kinds, with what must run in 16 bits in each.

Each builder makes the same variables and values at every call. Values are of
order 1 and the functions well conditioned, so that what is rounded to 16 bits
moves the results by a few times what rounding does to one number.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

# Of the norm of a result or a gradient: bfloat16 has 8 bits, which is 2**-9
# of a number at a rounding, and float16 11.
BOUNDS = {"bfloat16": 3e-2, "float16": 4e-3}
# Where rounding decides between two results, a few of the values are others.
JUMPS = 0.25

SIZE = 16


@dataclasses.dataclass
class Built:
    """A function with all that a call of it needs.

    Args:
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        variables: What its gradients are taken of, and what it may write.
    """

    function: Callable
    args: tuple
    kwargs: dict
    variables: list


@dataclasses.dataclass(frozen=True)
class Case:
    """A function and what autocast must make of it.

    Args:
        name: Name of the builder.
        build: Returns a `Built`.
        low: Types of ops all of which must run in 16 bits, as one string.
        full: Types of ops all of which must run in float32.
        factor: How many times the bound of a 16-bit dtype results may be off.
        why: Why the factor is not 1.
        jumps: What jumps, so that the bound is `JUMPS`.
        xla: Why XLA compiles the function not even without autocast.
        xla_skipped: Why there is nothing to compare under XLA.
        signature: What `input_signature` is.
    """

    name: str
    build: Callable[[], Built]
    low: str
    full: str
    factor: float
    why: str
    jumps: str
    xla: str
    xla_skipped: str
    signature: Any

    def bound(self, dtype):
        """Returns by how much of its norm a result may be off."""
        return JUMPS if self.jumps else self.factor * BOUNDS[dtype]


CASES: dict[str, Case] = {}


def case(
    low: str = "",
    full: str = "",
    factor: float = 1.0,
    why: str = "",
    jumps: str = "",
    xla: str = "",
    xla_skipped: str = "",
    signature: Any = None,
) -> Callable:
    """Registers a builder, which gets a `Values` and returns a `Built`."""
    assert (factor == 1.0) == (not why)

    def register(builder):
        name = builder.__name__
        CASES[name] = Case(
            name,
            lambda: builder(Values()),
            low,
            full,
            factor,
            why,
            jumps,
            xla,
            xla_skipped,
            signature,
        )
        return builder

    return register


class Values:
    """Makes values and variables, the same ones in the same order."""

    def __init__(self):
        self.generator = np.random.default_rng(7)
        self.variables = []

    def array(self, *shape, scale=1.0):
        return (self.generator.normal(size=shape) * scale).astype("float32")

    def x(self, *shape, scale=1.0):
        """Returns a tensor, by default of `(SIZE, SIZE)`."""
        return tf.constant(self.array(*(shape or (SIZE, SIZE)), scale=scale))

    def ids(self, high, *shape):
        return tf.constant(self.generator.integers(0, high, shape), tf.int32)

    def w(self, *shape, scale=1.0):
        """Returns a weight that keeps the size of what it multiplies."""
        shape = shape or (SIZE, SIZE)
        scale = scale / np.sqrt(np.prod(shape[:-1]))
        return self.variable(self.array(*shape, scale=scale))

    def b(self, size=SIZE):
        """Returns a bias."""
        return self.variable(self.array(size, scale=0.5))

    def variable(self, value, **options):
        self.variables.append(tf.Variable(value, **options))
        return self.variables[-1]

    def built(self, function, *args, **kwargs):
        return Built(function, args, kwargs, self.variables)


# Matrix products and attention


@case("MatMul Tanh AddV2 BiasAdd")
def mlp(v):
    w1, b1, w2, b2 = v.w(), v.b(), v.w(), v.b()

    def function(x):
        h = tf.tanh(tf.matmul(x, w1) + b1)
        return tf.nn.bias_add(tf.matmul(h, w2), b2)

    return v.built(function, v.x())


@case(
    "MatMul Relu AddV2",
    "Mean",
    jumps="the slope of a ReLU at its edge",
)
def relu_mlp(v):
    w1, b1, w2, w3 = v.w(), v.b(), v.w(), v.w()

    def function(x):
        h = tf.nn.relu(x @ w1 + b1)
        h = tf.nn.relu6(h @ w2) + tf.nn.leaky_relu(h @ w3)
        return h, tf.reduce_mean(h, 0)

    return v.built(function, v.x())


@case("MatMul Tanh", "Mean Pow")
def tied_weights(v):
    w = v.w(scale=0.7)

    def function(x):
        for _ in range(5):
            x = tf.tanh(tf.matmul(x, w))
        return tf.matmul(x, w, transpose_b=True), tf.reduce_mean(x**2)

    return v.built(function, v.x())


def _projected(v):
    weights = [v.w() for _ in range(4)]

    def project(x):
        q, k, value = (
            tf.reshape(tf.einsum("bsd,de->bse", x, w), (2, 8, 4, 4))
            for w in weights[:3]
        )
        return q, k, value, weights[3]

    return project


@case("Einsum Reshape", "Softmax AddV2")
def attention_with_additive_mask(v):
    project = _projected(v)

    def function(x, mask):
        q, k, value, out = project(x)
        scores = tf.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        scores += (1.0 - tf.cast(mask, tf.float32))[:, None, None] * -1e9
        weights = tf.nn.softmax(scores)
        mixed = tf.einsum("bhqk,bkhd->bqhd", weights, value)
        return tf.einsum("bse,ed->bsd", tf.reshape(mixed, (2, 8, 16)), out)

    mask = tf.sequence_mask([5, 8], 8)
    return v.built(function, v.x(2, 8, 16), mask)


@case("Einsum", "Softmax")
def attention_with_where(v):
    project = _projected(v)

    def function(x, mask):
        q, k, value, out = project(x)
        scores = tf.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        scores = tf.where(mask[:, None, None], scores, -1e9)
        weights = tf.nn.softmax(scores)
        mixed = tf.einsum("bhqk,bkhd->bqhd", weights, value)
        return tf.einsum("bse,ed->bsd", tf.reshape(mixed, (2, 8, 16)), out)

    return v.built(function, v.x(2, 8, 16), tf.sequence_mask([5, 8], 8))


@case("MatMul BatchMatMulV2 Transpose", "Softmax")
def causal_attention(v):
    wq, wk, wv = v.w(), v.w(), v.w()
    causal = np.tril(np.ones((8, 8), bool))

    def heads(x):
        return tf.transpose(tf.reshape(x, (2, 8, 4, 4)), (0, 2, 1, 3))

    def function(x):
        flat = tf.reshape(x, (-1, SIZE))
        q, k, value = (heads(flat @ w) for w in (wq, wk, wv))
        scores = tf.matmul(q, k, transpose_b=True) / 2.0
        scores = tf.where(causal, scores, -np.inf)
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (2, 8, SIZE))

    return v.built(function, v.x(2, 8, 16))


# Convolutions


@case(
    "Conv2D MaxPool BiasAdd",
    "AvgPool Mean",
    jumps="which value of a window is the maximum",
)
def convolutions_and_pools(v):
    w1, b1, w2 = v.w(3, 3, 3, 8), v.b(8), v.w(3, 3, 8, 8)

    def function(x):
        h = tf.nn.bias_add(tf.nn.conv2d(x, w1, 1, "SAME"), b1)
        h = tf.nn.max_pool2d(h, 2, 2, "SAME")
        h = tf.nn.avg_pool2d(tf.nn.conv2d(h, w2, 1, "SAME"), 2, 2, "SAME")
        return h, tf.reduce_mean(h, (1, 2))

    return v.built(function, v.x(2, 12, 12, 3))


@case("DepthwiseConv2dNative Conv2D")
def separable_convolution(v):
    depth, point = v.w(3, 3, 4, 2), v.w(1, 1, 8, 8)
    # `DepthwiseConv2dNative` sums 9 values for each output.
    depth.assign(depth * 2.0)

    def function(x):
        h = tf.nn.depthwise_conv2d(x, depth, (1, 1, 1, 1), "SAME")
        return tf.nn.conv2d(tf.tanh(h), point, 1, "VALID")

    return v.built(function, v.x(2, 8, 8, 4))


@case("Conv2DBackpropInput Conv2D")
def transposed_convolution(v):
    down, up = v.w(3, 3, 4, 8), v.w(3, 3, 4, 8)

    def function(x):
        h = tf.tanh(tf.nn.conv2d(x, down, 2, "SAME"))
        return tf.nn.conv2d_transpose(h, up, (2, 8, 8, 4), 2, "SAME")

    return v.built(function, v.x(2, 8, 8, 4))


@case("Conv2D")
def convolutions_of_1_and_3_dimensions(v):
    w1, w3 = v.w(3, 4, 8), v.w(2, 2, 2, 2, 4)

    def function(line, volume):
        volume = tf.nn.conv3d(volume, w3, (1,) * 5, "SAME")
        return tf.nn.conv1d(line, w1, 1, "SAME"), tf.tanh(volume)

    return v.built(function, v.x(2, 8, 4), v.x(2, 4, 4, 4, 2))


@case("Conv2D FusedBatchNormV3", factor=2, why="it divides by a deviation")
def fused_batch_norm(v):
    w, gain, shift = v.w(3, 3, 4, 8), v.variable(tf.ones(8) * 1.2), v.b(8)
    moving = v.variable(tf.zeros(8), trainable=False)

    def function(x):
        h = tf.nn.conv2d(x, w, 1, "SAME")
        h, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            h, gain, shift, is_training=True
        )
        moving.assign(0.9 * moving + 0.1 * mean)
        return tf.tanh(h), mean, variance

    return v.built(function, v.x(2, 8, 8, 4))


# Loops and branches


@case("MatMul", "Mean")
def while_loop(v):
    w, u = v.w(scale=0.6), v.w()

    def function(x):
        def body(i, state):
            return i + 1, tf.tanh(tf.matmul(state, w) + tf.matmul(x, u))

        _, state = tf.while_loop(
            lambda i, state: i < 4,
            body,
            (0, tf.zeros_like(x)),
            maximum_iterations=4,
        )
        return state, tf.reduce_mean(tf.abs(state))

    return v.built(function, v.x())


@case(
    "MatMul",
    "TensorListSetItem TensorListStack",
)
def autograph_rnn(v):
    w, u, b = v.w(scale=0.6), v.w(), v.b()

    def function(x):
        state = tf.zeros((4, SIZE))
        states = tf.TensorArray(tf.float32, 6, element_shape=(4, SIZE))
        for i in tf.range(6):
            state = tf.tanh(tf.matmul(x[i], u) + tf.matmul(state, w) + b)
            states = states.write(i, state)
        return states.stack(), state

    return v.built(function, v.x(6, 4, SIZE))


@case("MatMul", xla="a loop that ends by its values has no gradient there")
def autograph_loop_with_break(v):
    w = v.w(scale=1.1)

    def function(x):
        turns = 0
        while tf.reduce_max(tf.abs(x)) < 1e6:
            x = tf.tanh(x @ w)
            turns += 1
            if turns >= 3:
                break
            if turns == 1:
                continue
            x = x * 0.9
        return x, turns

    return v.built(function, v.x())


@case("MatMul")
def map_fn(v):
    w = v.w()

    def function(x):
        return tf.map_fn(lambda row: tf.tanh(row @ w), x)

    return v.built(function, v.x(3, 4, SIZE))


@case("MatMul")
def vectorized_map(v):
    w = v.w()

    def function(x):
        return tf.vectorized_map(lambda row: tf.tanh(row @ w), x)

    return v.built(function, v.x(3, 4, SIZE))


@case("MatMul")
def scan(v):
    w = v.w(scale=0.6)

    def function(x):
        first = tf.zeros((4, SIZE))
        scanned = tf.scan(lambda s, row: tf.tanh(row + s @ w), x, first)
        return scanned, tf.foldl(lambda s, row: s + row, x)

    return v.built(function, v.x(3, 4, SIZE))


@case(
    "MatMul",
    xla_skipped="TensorFlow aborts: the length of the array is not known",
)
def growing_tensor_array(v):
    w = v.w()

    def function(x, count):
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        for i in tf.range(count):
            array = array.write(i, tf.tanh(x @ w) * tf.cast(i + 1, tf.float32))
        return array.concat()

    return v.built(function, v.x(), tf.constant(3))


@case("MatMul")
def loop_in_loop(v):
    w, u = v.w(scale=0.6), v.w(scale=0.6)

    def function(x):
        for _ in tf.range(2):
            for _ in tf.range(3):
                x = tf.tanh(x @ w)
            x = x + tf.tanh(x @ u)
        return x

    return v.built(function, v.x())


@case("MatMul", xla="a variable comes out of a loop in a branch")
def loop_in_branch(v):
    w, u = v.w(scale=0.6), v.w()

    def function(x, flag):
        def looped():
            return tf.while_loop(
                lambda i, y: i < 3,
                lambda i, y: (i + 1, tf.tanh(y @ w)),
                (0, x),
                maximum_iterations=3,
            )[1]

        return tf.cond(flag, looped, lambda: tf.tanh(x @ u))

    return v.built(function, v.x(), tf.constant(True))


@case("MatMul")
def branch_in_loop(v):
    w, u = v.w(scale=0.6), v.w(scale=0.6)

    def function(x):
        for i in tf.range(4):
            if i % 2 == 0:  # noqa: SIM108  of a tensor
                x = tf.tanh(x @ w)
            else:
                x = tf.tanh(x @ u) + 0.1
        return x

    return v.built(function, v.x())


@case("MatMul")
def switch_case(v):
    w, u = v.w(), v.w()

    def function(x, index):
        return tf.switch_case(
            index,
            [
                lambda: (x @ w, tf.constant(0)),
                lambda: (tf.tanh(x @ u), tf.constant(1)),
                lambda: (x, tf.constant(2)),
            ],
        )

    return v.built(function, v.x(), tf.constant(1))


@case("MatMul")
def branch_on_a_float(v):
    w, u = v.w(), v.w()

    def function(x):
        y = x @ w
        if tf.reduce_sum(y) > 1e4:
            z, flag = y, tf.constant(1)
        elif tf.reduce_max(y) > -100.0:
            z, flag = tf.tanh(y @ u), tf.constant(2)
        else:
            z, flag = y * 2.0, tf.constant(3)
        return z, flag

    return v.built(function, v.x())


# Losses, normalizations, activations


def _logits(v, classes=SIZE):
    w = v.w(SIZE, classes)
    return lambda x: tf.matmul(x, w)


@case("MatMul", "SoftmaxCrossEntropyWithLogits Mean")
def softmax_cross_entropy(v):
    logits = _logits(v)

    def function(x, labels):
        return tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(labels, logits(x))
        )

    return v.built(function, v.x(), tf.nn.softmax(v.x()))


@case("MatMul", "SparseSoftmaxCrossEntropyWithLogits Mean")
def sparse_softmax_cross_entropy(v):
    logits = _logits(v)

    def function(x, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, logits(x)
        )
        return tf.reduce_mean(losses), losses

    return v.built(function, v.x(), v.ids(SIZE, SIZE))


@case("MatMul", "Exp Log1p Mean")
def sigmoid_cross_entropy(v):
    logits = _logits(v)

    def function(x, labels):
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels, logits(x))
        )

    return v.built(function, v.x(), tf.sigmoid(v.x()))


@case("MatMul", "L2Loss")
def l2_loss(v):
    w = v.w()

    def function(x):
        return tf.nn.l2_loss(x @ w) / 256.0 + 0.01 * tf.nn.l2_loss(w)

    return v.built(function, v.x())


@case(
    "MatMul",
    "Mean",
    factor=2,
    why="it sums over all alignments",
)
def ctc_loss(v):
    w = v.w(SIZE, 5)

    def function(x, labels):
        logits = tf.reshape(tf.matmul(tf.reshape(x, (-1, SIZE)), w), (8, 3, 5))
        losses = tf.nn.ctc_loss(
            labels, logits, [3, 2, 3], [8, 7, 8], blank_index=0
        )
        return tf.reduce_mean(losses)

    labels = tf.constant([[1, 2, 3], [4, 1, 0], [2, 2, 4]])
    return v.built(function, v.x(8, 3, SIZE), labels)


@case("MatMul", "LogSoftmax Max")
def log_softmax(v):
    logits = _logits(v)

    def function(x):
        y = tf.nn.log_softmax(logits(x))
        return y, tf.reduce_max(y, 1)

    return v.built(function, v.x())


@case("MatMul", "Exp Sum Log")
def logsumexp(v):
    logits = _logits(v)
    return v.built(lambda x: tf.reduce_logsumexp(logits(x), -1), v.x())


@case(
    "MatMul",
    "Mean SquaredDifference Rsqrt",
    factor=2,
    why="it divides by a deviation",
)
def layer_norm(v):
    w, gain, shift = v.w(), v.variable(tf.ones(SIZE) * 1.1), v.b()

    def function(x):
        h = x @ w
        mean, variance = tf.nn.moments(h, -1, keepdims=True)
        return tf.nn.batch_normalization(h, mean, variance, shift, gain, 1e-5)

    return v.built(function, v.x())


@case("MatMul", "Pow Mean Rsqrt")
def rms_norm(v):
    w, gain = v.w(), v.variable(tf.ones(SIZE) * 1.1)

    def function(x):
        h = x @ w
        scale = tf.math.rsqrt(tf.reduce_mean(h**2, -1, keepdims=True) + 1e-6)
        return h * scale * gain

    return v.built(function, v.x())


@case("MatMul Erfc Mul")
def exact_gelu(v):
    w, u = v.w(), v.w()
    return v.built(lambda x: tf.nn.gelu(x @ w) @ u, v.x())


@case("MatMul", "Pow Tanh")
def approximate_gelu(v):
    w, u = v.w(), v.w()
    return v.built(lambda x: tf.nn.gelu(x @ w, True) @ u, v.x())


@case("MatMul Sigmoid Elu", "Softplus")
def activations(v):
    w = v.w()

    def function(x):
        h = x @ w
        swish = h * tf.sigmoid(h)
        return tf.nn.softplus(h), swish, tf.nn.elu(h), tf.nn.selu(h)

    return v.built(function, v.x())


@case("MatMul", "Cholesky MatrixTriangularSolve")
def linear_algebra(v):
    w = v.w(scale=0.5)

    def function(x):
        gram = tf.matmul(x @ w, x @ w, transpose_b=True) + 4 * tf.eye(SIZE)
        root = tf.linalg.cholesky(gram)
        return tf.linalg.triangular_solve(root, x)

    return v.built(function, v.x())


@case("Conv2D", "ResizeBilinear")
def image_resizing(v):
    w = v.w(3, 3, 3, 4)

    def function(x):
        return tf.image.resize(tf.nn.conv2d(x, w, 1, "SAME"), (12, 12))

    return v.built(function, v.x(2, 6, 6, 3))


# Gather and scatter


@case("MatMul")
def gather_of_a_variable(v):
    table, w = v.variable(v.array(20, SIZE)), v.w()
    return v.built(lambda ids: tf.gather(table, ids) @ w, v.ids(20, 12))


@case("MatMul", "Sum")
def embedding_lookup(v):
    table, w = v.variable(v.array(20, SIZE)), v.w()

    def function(ids):
        found = tf.nn.embedding_lookup(table, ids)
        return tf.reduce_sum(found, 1) @ w

    return v.built(function, v.ids(20, 8, 3))


@case("MatMul GatherV2")
def gather_of_products(v):
    w, u = v.w(), v.w()

    def function(x, ids):
        return tf.tanh(tf.gather(x @ w, ids)) @ u, tf.gather_nd(
            x @ w, [[0, 1], [2, 2]]
        )

    return v.built(function, v.x(), v.ids(SIZE, 9))


@case("MatMul", "GatherV2")
def gather_of_an_input(v):
    w = v.w()
    return v.built(
        lambda x, ids: tf.tanh(tf.gather(x, ids) @ w), v.x(), v.ids(SIZE, 9)
    )


@case("MatMul Tanh", "ScatterNd")
def scatter(v):
    w = v.w()

    def function(x, ids):
        return tf.scatter_nd(ids[:, None], tf.tanh(x @ w), (8, SIZE))

    return v.built(function, v.x(), v.ids(8, SIZE))


@case("MatMul Tanh", "TensorScatterAdd")
def tensor_scatter_nd_add(v):
    w = v.w()

    def function(x, ids):
        y = x @ w
        return tf.tensor_scatter_nd_add(y, ids[:, None], tf.tanh(y[:4]))

    return v.built(function, v.x(), v.ids(8, 4))


@case(
    "MatMul",
    "SegmentSum UnsortedSegmentSum",
    xla="how many segments there are is not static",
)
def segment_sums(v):
    w = v.w()

    def function(x, ids):
        y = tf.tanh(x @ w)
        return (
            tf.math.segment_sum(y, tf.sort(ids)),
            tf.math.unsorted_segment_sum(y, ids, 5),
        )

    ids = tf.constant([3, 0, 1, 1, 4, 2, 2, 0, 1, 3, 3, 3, 2, 1, 0, 4])
    return v.built(function, v.x(), ids)


@case(
    "Tanh DynamicStitch",
    "ArgMax DynamicPartition",
    xla="a dynamic partition has no static shape",
)
def mixture_of_experts(v):
    w, u, gate = v.w(), v.w(), v.w(SIZE, 2)
    # Far from the edge between two experts.
    gate.assign(gate * 10)

    def function(x):
        logits = mp.full_precision(tf.matmul)(x, gate)
        chosen = tf.argmax(logits, -1, tf.int32)
        parts = tf.dynamic_partition(x, chosen, 2)
        rows = tf.dynamic_partition(tf.range(SIZE), chosen, 2)
        return tf.dynamic_stitch(
            rows, [tf.tanh(parts[0] @ w), tf.tanh(parts[1] @ u)]
        )

    return v.built(function, v.x())


# Gradients of one's own


@case("MatMul", "Exp")
def custom_gradient(v):
    w = v.w()

    @tf.custom_gradient
    def scaled(y):
        factor = tf.exp(-y * y)
        out = y * factor

        def gradient(upstream):
            return upstream * factor * 0.5 + tf.tanh(out)

        return out, gradient

    return v.built(lambda x: scaled(x @ w) @ w, v.x())


@case("MatMul")
def custom_gradient_of_variables(v):
    w, u = v.w(), v.w()

    @tf.custom_gradient
    def product(x):
        y = tf.tanh(tf.matmul(x, w))

        def gradient(upstream, variables=None):
            (each,) = variables
            inner = upstream * (1.0 - y * y)
            to_w = 2.0 * tf.matmul(x, inner, transpose_a=True)
            return tf.matmul(inner, each, transpose_b=True), [to_w]

        return y, gradient

    return v.built(lambda x: product(x @ u), v.x())


@case("MatMul")
def custom_gradient_in_a_loop(v):
    w = v.w(scale=0.6)

    @tf.custom_gradient
    def halved(y):
        out = tf.tanh(y)

        def gradient(upstream):
            return upstream * (1.0 - out * out) * 0.5

        return out, gradient

    def function(x):
        return tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, halved(y @ w) + x),
            (0, x),
            maximum_iterations=3,
        )[1]

    return v.built(function, v.x())


@case("MatMul")
def custom_gradient_in_a_nested_function(v):
    w = v.w()

    @tf.custom_gradient
    def halved(y):
        out = tf.tanh(y)

        def gradient(upstream):
            return upstream * (1.0 - out * out) * 0.5

        return out, gradient

    @tf.function
    def nested(x):
        return halved(x @ w)

    return v.built(lambda x: nested(nested(x)), v.x())


@case("MatMul")
def custom_gradient_in_a_branch(v):
    w = v.w()

    @tf.custom_gradient
    def halved(y):
        out = tf.tanh(y)
        return out, lambda upstream: upstream * (1.0 - out * out) * 0.5

    def function(x, flag):
        y = x @ w
        return tf.cond(flag, lambda: halved(y), lambda: y)

    return v.built(function, v.x(), tf.constant(True))


@case("MatMul", "Round", jumps="a rounding to steps")
def grad_pass_through(v):
    w = v.w()
    quantized = tf.grad_pass_through(
        mp.full_precision(lambda y: tf.round(y * 64.0) / 64.0)
    )
    return v.built(lambda x: quantized(x @ w), v.x())


@case("MatMul")
def stop_gradient(v):
    w, u = v.w(), v.w()

    def function(x):
        return tf.stop_gradient(x @ w) * tf.tanh(x @ u)

    return v.built(function, v.x())


@case("MatMul")
def recompute_grad(v):
    w, u = v.w(), v.w()
    inner = tf.recompute_grad(lambda y: tf.tanh(tf.tanh(y @ w) @ u))
    return v.built(lambda x: inner(x) + x, v.x())


@tf.RegisterGradient("AutocastTestsTripled")
def _tripled(op, upstream):
    return upstream * 3.0


@case("MatMul Tanh")
def gradient_override(v):
    w = v.w()

    def function(x):
        graph = tf.compat.v1.get_default_graph()
        y = x @ w
        with graph.gradient_override_map({"Tanh": "AutocastTestsTripled"}):
            return tf.tanh(y)

    return v.built(function, v.x())


@case("MatMul Tanh TanhGrad", "Sum Pow Mean")
def gradient_penalty(v):
    w, u = v.w(), v.w(SIZE, 1)

    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = tf.tanh(x @ w) @ u
        gradient = tape.gradient(score, x)
        norm = tf.reduce_sum(gradient**2, 1)
        return tf.reduce_mean(score) + tf.reduce_mean((norm - 1.0) ** 2)

    return v.built(function, v.x())


@case("MatMul", "Mean")
def training_step(v):
    w, u = v.w(), v.w(SIZE, 1)

    def function(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ w) @ u - y) ** 2)
        for each, gradient in zip(
            (w, u), tape.gradient(loss, (w, u)), strict=True
        ):
            each.assign_sub(0.1 * gradient)
        return loss

    return v.built(function, v.x(), v.x(SIZE, 1))


@case("MatMul", "Mean Sum")
def training_step_of_an_rnn(v):
    w, u = v.w(scale=0.6), v.w(SIZE, 1)

    def function(x, y):
        with tf.GradientTape() as tape:
            state = tf.while_loop(
                lambda i, state: i < 3,
                lambda i, state: (i + 1, tf.tanh(x + state @ w)),
                (0, tf.zeros_like(x)),
                maximum_iterations=3,
            )[1]
            loss = tf.reduce_mean((state @ u - y) ** 2)
        gradients = tape.gradient(loss, (w, u))
        norm = tf.linalg.global_norm(gradients)
        for each, gradient in zip((w, u), gradients, strict=True):
            each.assign_sub(0.1 * gradient)
        return loss, norm

    return v.built(function, v.x(), v.x(SIZE, 1))


# Other dtypes, other tensors


@case("MatMul", "RFFT")
def fourier_transform(v):
    w = v.w()

    def function(x):
        spectrum = tf.signal.rfft(x @ w)
        return tf.signal.irfft(spectrum * (0.5 + 0.5j)), tf.abs(spectrum)

    return v.built(function, v.x())


@case("MatMul", "Complex")
def complex_numbers(v):
    w = v.w()

    def function(x):
        z = tf.complex(x @ w, x)
        z = tf.matmul(z, z, adjoint_b=True) / 16.0
        return z, tf.math.real(z), tf.math.imag(z)

    return v.built(function, v.x())


@case("MatMul", xla="no strings there")
def strings(v):
    w = v.w()

    def function(x, words):
        lengths = tf.cast(tf.strings.length(words), tf.float32)
        joined = tf.strings.join([words, tf.strings.as_string(lengths)], "-")
        return (x @ w) * lengths[:, None], tf.strings.upper(joined)

    words = tf.constant(["a", "bc", "def", "", *["word"] * 12])
    return v.built(function, v.x(), words)


@case("MatMul")
def integers(v):
    w = v.w()

    def function(x, counts):
        y = tf.matmul(counts, counts)
        ranks = tf.argsort(x, -1)
        return (x @ w) * tf.cast(y, tf.float32), y + 1, ranks, y > 3

    return v.built(function, v.x(), v.ids(3, SIZE, SIZE))


@case("MatMul", xla="no sparse product there")
def sparse_input(v):
    w = v.w()

    def function(sparse, x):
        y = tf.tanh(x @ w)
        doubled = sparse.with_values(sparse.values * 2.0)
        return tf.sparse.sparse_dense_matmul(sparse, y), doubled

    dense = v.array(SIZE, SIZE) * (v.array(SIZE, SIZE) > 1)
    return v.built(function, tf.sparse.from_dense(dense), v.x())


@case("MatMul")
def sparse_output(v):
    w = v.w()
    keep = v.array(SIZE, SIZE) > 0

    def function(x):
        y = tf.where(keep, x @ w, 0.0)
        return tf.sparse.from_dense(y), {"y": y}

    return v.built(function, v.x())


@case("MatMul", xla="the lengths of rows are values")
def ragged(v):
    w = v.w(5, 8)

    def function(rows):
        y = tf.ragged.map_flat_values(lambda x: tf.tanh(x @ w), rows)
        return y, tf.reduce_sum(y, 1), rows.to_tensor()

    rows = tf.RaggedTensor.from_row_lengths(v.x(9, 5), [3, 0, 4, 2])
    return v.built(function, rows)


@case(factor=0, why="no float32 comes in")
def float64(v):
    w = v.variable(v.array(SIZE, SIZE).astype("float64") / 4)

    def function(x):
        y = tf.tanh(x @ w)
        return y, tf.cast(x, tf.float32), tf.cast(y, tf.bfloat16)

    return v.built(function, tf.constant(v.array(SIZE, SIZE), tf.float64))


@case("MatMul")
def float64_beside_float32(v):
    w = v.w()

    def function(x, y):
        product = tf.cast(tf.matmul(x, w), tf.float64)
        return product + y, y * y

    return v.built(function, v.x(), tf.cast(v.x(), tf.float64))


@case("MatMul")
def bfloat16(v):
    w = v.w()

    def function(x, y):
        return y * y, tf.cast(y, tf.float32) + x @ w, y

    return v.built(function, v.x(), tf.cast(v.x(), tf.bfloat16))


# Keras


def _keras(v, model, *args, **kwargs):
    v.variables += [each.value for each in model.variables]
    return v.built(model, *args, **kwargs)


@case(
    "MatMul Conv2D MaxPool",
    "Softmax",
    jumps="which value of a window is the maximum",
)
def keras_functional(v):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", activation="tanh")(inputs)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    logits = keras.layers.Dense(10, name="logits")(x)
    outputs = keras.layers.Softmax()(logits)
    model = keras.Model(inputs, [logits, outputs])
    return _keras(v, model, v.x(2, 8, 8, 3))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        # A bias would have a gradient of 0, all of it rounding.
        self.first = keras.layers.Dense(SIZE, use_bias=False)
        self.normalization = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.3, seed=5)
        self.last = keras.layers.Dense(4)

    def call(self, x, training=False):
        x = self.normalization(self.first(x), training=training)
        x = self.dropout(tf.tanh(x), training=training)
        return {"logits": self.last(x), "features": x}


@case(
    "MatMul",
    "Mean Rsqrt",
    factor=2,
    why="it divides by a deviation",
)
def keras_subclassed(v):
    keras.utils.set_random_seed(3)
    model = Subclassed()
    x = v.x()
    model(x)
    return _keras(v, model, x, training=True)


@case("MatMul")
def keras_lstm(v):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((5, 6)),
            keras.layers.LSTM(SIZE, return_sequences=True, use_cudnn=False),
            keras.layers.Dense(4),
        ]
    )
    return _keras(v, model, v.x(3, 5, 6))


@case("Einsum", "Softmax Rsqrt")
def keras_attention(v):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, SIZE))
    attention = keras.layers.MultiHeadAttention(2, 8, use_bias=False)
    x = attention(inputs, inputs)
    x = keras.layers.LayerNormalization()(x + inputs)
    return _keras(v, keras.Model(inputs, x), v.x(2, 6, SIZE))


# Arguments, results, captures


@case("MatMul")
def structures(v):
    w, u, _ = v.w(), v.w(), v.w()  # nothing uses the last one

    def function(inputs, scale=None):
        x, (y, nothing) = inputs["x"], inputs["y"]
        assert nothing is None
        product = x @ w
        return {
            "a": (product, None, [y @ u, {"x": x}]),
            "b": scale,
            "c": (),
            "same": product,
            "number": tf.constant(3),
        }

    return v.built(function, {"x": v.x(), "y": (v.x(), None)})


@case("MatMul")
def keywords_and_defaults(v):
    w, b = v.w(), v.b()

    def function(x, /, y=None, *more, scale=2.0, flag=True, **others):
        out = x @ w * scale
        if flag:
            out += b
        for each in (*more, *others.values()):
            out += each
        return out if y is None else out * y

    return v.built(function, v.x(), v.x(), v.x(), scale=0.5, other=v.x())


@case(
    "MatMul Reshape",
    signature=(
        tf.TensorSpec((None, None, SIZE), tf.float32),
        tf.TensorSpec(None, tf.float32),
    ),
)
def unknown_shapes(v):
    w = v.w()

    def function(x, y):
        flat = tf.reshape(x, (-1, SIZE))
        y = tf.matmul(tf.reshape(y, (-1, SIZE)), w)
        sizes = tf.shape(x)
        product = tf.reshape(tf.tanh(flat @ w), sizes)
        return product, tf.reduce_sum(tf.abs(y)), sizes

    return v.built(function, v.x(2, 3, SIZE), v.x(4, SIZE))


@case(
    "MatMul",
    signature=(tf.TensorSpec((None, SIZE), tf.float32),),
)
def unknown_batch(v):
    w, b = v.w(), v.b()
    return v.built(lambda x: tf.tanh(x @ w + b), v.x(5, SIZE))


@case("MatMul")
def nested_functions(v):
    w, b = v.w(), v.b()

    @tf.function
    def inner(x):
        return tf.tanh(tf.matmul(x, w))

    @tf.function
    def outer(x, twice):
        y = inner(x)
        if twice:
            y = inner(y)
        return {"y": y + b}

    def function(x):
        return outer(x, True)["y"] + outer(x, False)["y"]

    return v.built(function, v.x())


@case("MatMul")
def compiled_inside(v):
    w = v.w()

    @tf.function(jit_compile=True)
    def inner(x):
        return tf.tanh(tf.matmul(x, w)), tf.reduce_mean(x)

    def function(x):
        y, mean = inner(x)
        return inner(y)[0] + mean

    return v.built(function, v.x())


@case("MatMul")
def variables_of_the_first_call(v):
    values = v.array(SIZE, SIZE, scale=0.25)

    def function(x):
        if not v.variables:
            v.variable(tf.constant(values))
        return tf.tanh(x @ v.variables[0])

    return v.built(function, v.x())


@case("MatMul Mul")
def captured_constants(v):
    w, b = v.array(SIZE, SIZE) / 4, v.x()
    big = v.array(40, 40)

    def function(x):
        return tf.tanh(x @ w * np.float32(0.5) + b) @ b, big @ tf.transpose(
            tf.pad(x, ((0, 0), (0, 24)))
        )

    return v.built(function, v.x())


@case("MatMul")
def counters(v):
    w = v.w()
    calls = v.variable(0, trainable=False)
    total = v.variable(0.0, trainable=False)

    def function(x):
        calls.assign_add(1)
        y = tf.tanh(x @ w)
        total.assign_add(tf.reduce_sum(y))
        return y, calls.value(), total.read_value()

    return v.built(function, v.x())


@case("MatMul")
def assignments_in_a_loop(v):
    w = v.w(scale=0.6)
    state = v.variable(tf.zeros((SIZE, SIZE)), trainable=False)

    def function(x):
        before = state.read_value()
        for _ in tf.range(3):
            state.assign(tf.tanh(x + state @ w))
            state.assign_add(0.1 * tf.ones_like(x))
        return before, state.read_value(), state @ w

    return v.built(function, v.x())


@case("MatMul")
def a_weight_that_is_written(v):
    w = v.w()

    def function(x):
        first = x @ w
        w.assign(w * 0.5)
        second = x @ w
        w.assign_add(tf.ones_like(w) * 0.01)
        return first, second, x @ w

    return v.built(function, v.x())


class Module(tf.Module):
    def __init__(self, v):
        super().__init__()
        self.w, self.b = v.w(), v.b()

    def method(self, x, scale=1.0):
        return tf.tanh(x @ self.w + self.b) * scale


@case("MatMul AddV2 Tanh")
def method_of_a_module(v):
    return v.built(Module(v).method, v.x(), scale=0.5)


@case("MatMul")
def partial_function(v):
    module = Module(v)
    return v.built(functools.partial(module.method, scale=2.0), v.x())


# Random numbers and effects


@case("MatMul", xla_skipped="random numbers differ from call to call")
def random_numbers(v):
    w = v.w()

    def function(x):
        noise = tf.random.normal((SIZE, SIZE), seed=11)
        return (x + noise) @ w, tf.nn.dropout(x @ w, 0.5, seed=12)

    return v.built(function, v.x())


@case("MatMul")
def stateless_dropout(v):
    w, u = v.w(), v.w()

    def function(x):
        h = tf.tanh(x @ w)
        h = tf.nn.experimental.stateless_dropout(h, 0.4, seed=(1, 2))
        return h @ u, tf.random.stateless_uniform((4,), (3, 4))

    return v.built(function, v.x())


@case("MatMul", xla="no files there")
def prints_and_assertions(v):
    w = v.w()

    def function(x):
        y = tf.tanh(x @ w)
        tf.debugging.assert_less_equal(tf.abs(y), 1.0)
        tf.debugging.assert_all_finite(y, "not finite")
        tf.print("sum", tf.reduce_sum(y), output_stream="file:///dev/null")
        return tf.ensure_shape(y, (SIZE, SIZE))

    return v.built(function, v.x())


@case("MatMul", xla="no Python there")
def python_inside(v):
    w = v.w()

    def function(x):
        y = x @ w
        mask = tf.numpy_function(lambda a: a > 10, [x], tf.bool, False)
        z = tf.py_function(lambda a: a * a, [y], tf.float32)
        mask, z = tf.ensure_shape(mask, (SIZE, SIZE)), tf.reshape(z, y.shape)
        return tf.where(mask, y, z * 0.5)

    return v.built(function, v.x())
