"""`mp.autocast` beside TensorFlow's own graph rewrite for oneDNN.

TensorFlow rewrites a graph when it runs it, for processors with instructions
for bfloat16 alone, and gradients like all else. Autocast must leave in float32
nothing that TensorFlow runs in bfloat16, except for what is said here.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tf_mixprec as mp

THEIRS = "auto_mixed_precision_onednn_bfloat16"
MARK = "AutoMixedPrecision"  # in the names of the casts that TensorFlow adds

# Why autocast runs in float32 what TensorFlow runs in bfloat16, with the
# functions in which it does, all that it has of it.
EXPLAINED = {
    "BiasAddGrad": ("mlp", "a sum; on CPUs a `Sum` is what has its place"),
    "Mean": ("mlp convolutions block", "a full op"),
    "Square": ("mlp", "a full op"),
    "SquaredDifference": ("block", "a full op"),
    "Rsqrt": ("block", "a full op"),
    "Softmax": ("attention logarithms", "a full op"),
    "Softplus": ("logarithms", "a full op"),
    "Log": ("logarithms", "a full op"),
    "Reciprocal": ("logarithms", "in the gradient of a full op, `Log`"),
    "AvgPool": ("convolutions", "a full op"),
    "AvgPoolGrad": ("convolutions", "a full op"),
    "Mul": ("mlp logarithms", "of float32, which full ops and gradients give"),
    "Sub": ("attention block logarithms", "of float32, which full ops give"),
}


# Functions that return a loss, and what its gradients are taken of


def values(*shape, scale=1.0):
    random = np.random.default_rng(sum(shape))
    return (scale * random.standard_normal(shape)).astype("float32")


def weight(*shape):
    return tf.Variable(values(*shape, scale=np.prod(shape[:-1]) ** -0.5))


def mlp():
    """Returns dense layers, with both ways to add a bias."""
    weights = [weight(32, 32) for _ in range(3)]
    biases = [weight(32) for _ in range(2)]

    def loss(x):
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights[0]), biases[0]))
        x = tf.tanh(tf.matmul(x, weights[1]) + biases[1])
        return tf.reduce_mean(tf.square(tf.matmul(x, weights[2])))

    return loss, values(16, 32), [*weights, *biases]


def convolutions():
    """Returns convolutions with pooling and batch normalization."""
    filters = [weight(3, 3, 8, 8) for _ in range(3)]
    scale, offset = tf.Variable(tf.ones(8)), tf.Variable(tf.zeros(8))

    def loss(x):
        x = tf.nn.conv2d(x, filters[0], 1, "SAME")
        x, _, _ = tf.compat.v1.nn.fused_batch_norm(x, scale, offset)
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
        x = tf.nn.conv2d(x, filters[1], 1, "SAME")
        x = tf.nn.avg_pool2d(tf.nn.leaky_relu(x), 2, 2, "VALID")
        x = tf.nn.relu6(tf.nn.conv2d(x, filters[2], 1, "SAME"))
        return tf.reduce_mean(x)

    return loss, values(4, 16, 16, 8), [*filters, scale, offset]


def attention():
    """Returns attention with two heads, by einsums."""
    query, key, value = (weight(16, 2, 8) for _ in range(3))
    out = tf.Variable(values(2, 8, 16, scale=0.25))

    def loss(x):
        q, k, v = (
            tf.einsum("bti,ihd->bthd", x, w) for w in (query, key, value)
        )
        scores = tf.einsum("bthd,bshd->bhts", q, k) * 8**-0.5
        found = tf.einsum("bhts,bshd->bthd", tf.nn.softmax(scores), v)
        return tf.reduce_sum(tf.einsum("bthd,hdi->bti", found, out))

    return loss, values(2, 6, 16), [query, key, value, out]


def block():
    """Returns layer normalization and a residual block with a GELU."""
    wide, narrow = weight(16, 32), weight(32, 16)
    bias, scale, offset = weight(32), tf.Variable(tf.ones(16)), weight(16)

    def loss(x):
        x = tf.matmul(x, tf.eye(16))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        normal = (x - mean) * tf.math.rsqrt(variance + 1e-3) * scale + offset
        hidden = tf.nn.gelu(tf.matmul(normal, wide) + bias)
        return tf.nn.l2_loss(x + tf.matmul(hidden, narrow))

    return loss, values(8, 16), [wide, narrow, bias, scale, offset]


def classifier():
    """Returns the cross-entropy of logits."""
    hidden, logits = weight(16, 16), weight(16, 10)
    labels = np.arange(8) % 10

    def loss(x):
        x = tf.nn.elu(tf.matmul(x, hidden))
        x = tf.concat([x[:, :8], tf.sigmoid(x[:, 8:])], 1)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, tf.matmul(x, logits)
            )
        )

    return loss, values(8, 16), [hidden, logits]


def logarithms():
    """Returns a loss of probabilities."""
    weights = weight(16, 16)

    def loss(x):
        p = tf.nn.softmax(tf.matmul(x, weights))
        q = tf.sigmoid(tf.matmul(x, weights))
        return -tf.reduce_sum(p * tf.math.log(q + 0.1)) + tf.reduce_sum(
            tf.nn.softplus(tf.matmul(q, weights)) + tf.exp(-q)
        )

    return loss, values(8, 16), [weights]


FUNCTIONS: dict[str, Callable] = {
    "mlp": mlp,
    "convolutions": convolutions,
    "attention": attention,
    "block": block,
    "classifier": classifier,
    "logarithms": logarithms,
}


def step(loss, variables, jit_compile=False):
    """Returns a `tf.function` of a loss and its gradients."""

    @tf.function(jit_compile=jit_compile)
    def loss_and_gradients(x):
        with tf.GradientTape() as tape:
            value = loss(x)
        return value, tape.gradient(value, variables)

    return loss_and_gradients


# What runs in 16 bits


@contextlib.contextmanager
def rewriting(option: str) -> Iterator[None]:
    """Lets TensorFlow rewrite what is called here.

    Nodes are not fused, so that each is of an op of the function.
    """
    set_options = tf.config.optimizer.set_experimental_options
    set_options({option: True, "remapping": False})
    try:
        yield
    finally:
        set_options({option: False, "remapping": True})


def optimized_nodes(function, x) -> list[Any]:
    """Returns the nodes of a function as TensorFlow runs it, once."""
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # what is left of other functions
        function(x)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [f.post_optimization_graph for f in metadata.function_graphs]
    return [
        node
        for graph in graphs
        for nodes in (graph.node, *(f.node_def for f in graph.library.function))
        for node in nodes
    ]


def is_rewritten(nodes) -> bool:
    return any(MARK in node.name for node in nodes)


def theirs(make) -> set[str] | None:
    """Returns the types of the ops that TensorFlow runs in bfloat16.

    They are those of the function as traced, by the names of the nodes; `None`
    where TensorFlow rewrites nothing.
    """
    loss, x, variables = make()
    function = step(loss, variables)
    graph = function.get_concrete_function(x).graph
    types = {op.name: op.type for op in graph.get_operations()}
    with rewriting(THEIRS):
        nodes = optimized_nodes(function, x)
    if not is_rewritten(nodes):
        return None
    number = tf.bfloat16.as_datatype_enum
    return {
        types[node.name]
        for node in nodes
        if node.name in types
        and any(attribute.type == number for attribute in node.attr.values())
    } - NO_WORK


def ours(make, dtype="bfloat16") -> set[str]:
    """Returns the types of the ops that autocast runs in 16 bits."""
    loss, x, variables = make()
    function = step(mp.autocast(loss, dtype), variables)
    return low_types(function.get_concrete_function(x).graph, dtype) - NO_WORK


def low_types(graph, dtype) -> set[str]:
    """Returns the types of a graph's ops that take or give a dtype.

    Those of the functions that it calls are among them.
    """
    found = set()
    for op in graph.get_operations():
        if any(x.dtype == dtype for x in (*op.inputs, *op.outputs)):
            found.add(op.type)
    number = tf.as_dtype(dtype).as_datatype_enum
    for function in graph.as_graph_def().library.function:
        found |= {
            node.op
            for node in function.node_def
            if any(value.type == number for value in node.attr.values())
        }
    return found


# What only carries values, or makes them before a function runs.
NO_WORK = {
    "Cast",
    "Const",
    "Identity",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "Placeholder",
}


@pytest.fixture(scope="module")
def rewritten() -> dict[str, set[str]]:
    """Returns what TensorFlow runs in bfloat16, of each function."""
    found = {name: theirs(make) for name, make in FUNCTIONS.items()}
    if any(types is None for types in found.values()):
        pytest.skip("TensorFlow rewrites nothing for this processor")
    return found


@pytest.fixture(scope="module")
def missed(rewritten) -> dict[str, set[str]]:
    """Returns what TensorFlow alone runs in bfloat16, of each function."""
    return {
        name: types - ours(FUNCTIONS[name]) for name, types in rewritten.items()
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_tensorflow_runs_in_bfloat16_autocast_does_too(missed, name):
    # All of these, so that no explanation is of what does not occur.
    assert missed[name] == {
        op_type
        for op_type, (functions, _) in EXPLAINED.items()
        if name in functions.split()
    }


def test_the_explained_ops_are_full_or_follow():
    """An op in the list of low ones has no explanation."""
    lists = mp.op_lists.DEFAULT
    for op_type, (_, why) in EXPLAINED.items():
        expected = ("full",) if why == "a full op" else ("full", "widest")
        assert lists.category(op_type) in expected


def test_tensorflow_rewrites_low_ops_of_all_functions(rewritten):
    """Or else there is nothing to compare with."""
    low = set(mp.op_lists.DEFAULT.names("low"))
    assert all(types & low for types in rewritten.values())


def losses(make, wrap, jit_compile) -> list[np.ndarray]:
    loss, x, variables = make()
    value, gradients = step(wrap(loss), variables, jit_compile)(x)
    return [np.array(value), *map(np.array, gradients)]


def same(some, others) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def unchanged(loss):
    return loss


@pytest.mark.parametrize(
    "option",
    [THEIRS, pytest.param("auto_mixed_precision", marks=pytest.mark.slow)],
)
def test_tensorflow_rewrites_nothing_that_xla_compiles(option):
    plain = losses(mlp, unchanged, jit_compile=True)
    with rewriting(option):
        rewritten = losses(mlp, unchanged, jit_compile=True)
    assert same(rewritten, plain)
    # Autocast does.
    low = losses(mlp, lambda loss: mp.autocast(loss, "bfloat16"), True)
    assert not same(low, plain)


def test_tensorflow_has_no_float16_for_cpus():
    loss, x, variables = mlp()
    with rewriting("auto_mixed_precision"):
        assert not is_rewritten(optimized_nodes(step(loss, variables), x))
    # Not the sum with a bias, whose gradient CPUs would add up in float16.
    assert {"MatMul", "BiasAdd", "Relu"} <= ours(mlp, "float16")
