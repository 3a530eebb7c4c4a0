"""What `mp.autocast_report` says."""

import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

X = tf.ones((4, 8))


def make_network():
    """A function with two parameters, each used by low ops only."""
    first, second = tf.Variable(tf.ones((8, 8))), tf.Variable(tf.ones((8, 2)))

    def network(x):
        h = tf.nn.relu(tf.matmul(x, first))
        h = tf.nn.softmax(tf.matmul(h, first))
        return tf.reduce_mean(tf.matmul(h, second))

    return network


def report_of(function, *args, **kwargs):
    return mp.autocast_report(
        mp.autocast(function, "bfloat16"), *args, **kwargs
    )


def emitted(function, *args):
    """The types and dtypes in the graph that is run."""
    graph = function.get_concrete_function(*args).graph
    return [
        (op.type, each.dtype.name)
        for op in graph.get_operations()
        for each in op.outputs[:1]
    ]


def test_the_census_is_that_of_the_graph():
    function = mp.autocast(make_network(), "bfloat16")
    report = mp.autocast_report(function, X)
    assert report.dtype == "bfloat16"
    assert report.census == {
        ("MatMul", "bfloat16"): 3,
        ("Relu", "bfloat16"): 1,
        ("Softmax", "float32"): 1,
        ("Mean", "float32"): 1,
        ("ReadVariableOp", "float32"): 3,
    }
    built = emitted(function, X)
    for key in [k for k in report.census if k[0] != "ReadVariableOp"]:
        assert built.count(key) == report.census[key]
    # Read once each, however often they are used.
    assert built.count(("ReadVariableOp", "float32")) == 2


def test_casts_are_those_of_the_graph():
    function = mp.autocast(make_network(), "bfloat16")
    report = mp.autocast_report(function, X)
    built = [kind for kind, _ in emitted(function, X)]
    assert built.count("Cast") == len(report.casts)
    found = [(c.source, c.target, c.size, c.bytes) for c in report.casts]
    down, up = ("float32", "bfloat16"), ("bfloat16", "float32")
    assert sorted(found) == sorted(
        [
            (*down, 32, 192),  # x
            (*down, 64, 384),  # the first weight, once
            (*down, 16, 96),  # the second
            (*up, 32, 192),  # into the softmax
            (*down, 32, 192),  # out of it
            (*up, 8, 48),  # into the mean
        ]
    )
    assert report.cast_bytes == sum(bytes for *_, bytes in found)


def test_islands_and_their_causes():
    first, second = report_of(make_network(), X).islands
    assert first.cause_type == "Softmax"
    assert first.ops == (first.cause,) == ("Softmax",)
    assert first.lone
    assert "list of full ops" in first.reason
    assert second.cause_type == "Mean"
    assert not second.lone  # it is what the function returns


def test_an_island_is_what_hangs_together():
    def function(x):
        y = tf.matmul(x, x, transpose_b=True)
        z = tf.exp(y) + 1.0
        return tf.matmul(tf.math.log(z) * 2.0, z)

    (island,) = report_of(function, X).islands
    assert island.cause_type == "Exp"
    assert len(island.ops) == 4
    assert not island.lone


def test_an_op_in_no_list_is_reported():
    report = report_of(
        lambda x: tf.math.special.bessel_j0(tf.matmul(x, x[:, :4], True)), X
    )
    assert report.unknown == ("BesselJ0",)
    assert "BesselJ0" in str(report).split("in no list")[-1]
    (decision,) = (d for d in report.decisions if d.kind == "unknown")
    assert decision.dtype == "float32"
    assert decision.reason == "in no list"


def test_loops_are_entered_and_casts_in_them_marked():
    w = tf.Variable(tf.eye(8))

    def function(x):
        return tf.while_loop(
            lambda i, y: i < 5,
            lambda i, y: (i + 1, tf.tanh(tf.matmul(y, w))),
            (0, x),
        )[1]

    report = report_of(function, X)
    (product,) = (d for d in report.decisions if d.op_type == "MatMul")
    assert product.path.startswith("while/")
    assert product.dtype == "bfloat16"
    looped = {c.size: c.looped for c in report.casts}
    assert looped == {32: True, 64: False}  # the weight is cast outside
    assert "in each turn of a loop" in str(report)


def test_a_region_in_full_precision_is_named():
    exact = mp.full_precision(lambda x: tf.matmul(x, x, transpose_b=True))
    report = report_of(lambda x: exact(x), X)
    (decision,) = report.decisions
    assert decision.kind == "as written"
    assert not report.casts
    assert not report.islands


def test_why_an_op_is_in_float32():
    def function(x):
        low = tf.matmul(x, x, transpose_b=True)
        return (
            low + tf.matmul(x, x, transpose_b=True),
            x[:, :4] + low,
            low + 1e-45,
            tf.nn.max_pool3d(low[None, :, :, None, None], 1, 1, "SAME"),
        )

    report = mp.autocast_report(mp.autocast(function, "float16"), X)
    reasons = [
        d.reason.split()[0]
        for d in report.decisions
        if d.op_type in ("AddV2", "MaxPool3D")
    ]
    assert reasons[:3] == ["follows", "float32", "constant"]
    if not tf.config.list_physical_devices("GPU"):
        assert reasons[3] == "no"  # kernel


def test_shapes_that_are_not_known():
    spec = tf.TensorSpec((None, 8), tf.float32)
    report = report_of(lambda x: tf.matmul(x, x, transpose_b=True), spec)
    assert [c.bytes for c in report.casts] == [None, None]
    assert report.cast_bytes == 0
    assert "size not known" in str(report)


def test_keyword_arguments_and_nothing_is_run():
    ran = []

    def function(x, *, scale):
        tf.numpy_function(lambda: ran.append(0), [], [])
        return tf.matmul(x, x, transpose_b=True) * scale

    report = report_of(function, X, scale=2.0)
    assert report.census["Mul", "bfloat16"] == 1
    assert not ran


def test_a_function_without_autocast():
    def report():
        return mp.autocast_report(
            lambda x: tf.matmul(x, x, transpose_b=True), X
        )

    if mp.recommended_policy().policy.compute_dtype == "float32":
        with pytest.raises(ValueError, match="Autocast must be on"):
            report()
    else:
        assert ("MatMul", report().dtype) in report().census
    with pytest.raises(ValueError, match="Autocast must be on"):
        mp.autocast_report(mp.autocast(make_network(), "float32"), X)


def test_a_step_that_calls_functions_under_autocast():
    network = mp.autocast(make_network(), "bfloat16")
    inner = mp.autocast_report(network, X)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = network(x)
        return tape.gradient(loss, tape.watched_variables())

    report = mp.autocast_report(mp.autocast(step, "bfloat16"), X)
    products = [d for d in report.decisions if d.op_type == "MatMul"]
    reasons = {d.reason for d in products}
    assert "in the list of low ops" in reasons
    assert {c.size for c in inner.casts} <= {c.size for c in report.casts}
    assert any(each.cause_type == "Softmax" for each in report.islands)


def test_a_method():
    class Network(tf.Module):
        @mp.autocast(dtype="bfloat16")
        def call(self, x):
            return tf.matmul(x, x, transpose_b=True)

    report = mp.autocast_report(Network().call, X)
    assert report.census == {("MatMul", "bfloat16"): 1}


def test_many_casts_are_not_all_printed():
    weights = [tf.Variable(tf.eye(8)) for _ in range(30)]

    def function(x):
        for weight in weights:
            x = tf.matmul(x, weight)
        return x

    report = report_of(function, X)
    assert len(report.casts) == 32
    assert "and 12 more, in `report.casts`" in str(report)


def test_the_table():
    text = str(report_of(make_network(), X))
    assert text.startswith("autocast to bfloat16\n")
    (line,) = (t for t in text.splitlines() if t.startswith("MatMul "))
    assert line.split()[:3] == ["MatMul", "bfloat16", "3"]
    assert "casts: 6, 1,104 bytes in a call" in text
    assert "Softmax (Softmax): 1 op, in the list of full ops; alone" in text
    np.testing.assert_equal(text.count("\n\n"), 3)
