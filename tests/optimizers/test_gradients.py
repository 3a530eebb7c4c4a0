"""Sparse and missing gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.optimizers import gradients as gradient_lists

CALLS = pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f: f, id="eager"),
        pytest.param(tf.function, id="graph"),
        pytest.param(lambda f: tf.function(f, jit_compile=True), id="xla"),
    ],
)


def slices(values, indices, rows=1000, dtype="float32"):
    values = tf.constant(values, dtype)
    return tf.IndexedSlices(
        values, tf.constant(indices), tf.constant([rows, values.shape[1]])
    )


def unscale(gradients, scale=4.0, variables=None):
    variables = variables or [None] * len(gradients)
    return (
        gradient_lists.unscaled(
            gradients, variables, tf.constant(scale), by_reciprocal=True
        ),
        gradient_lists.found_inf(gradients),
    )


@CALLS
def test_a_sparse_gradient_is_unscaled_and_stays_sparse(call):
    @call
    def run(gradient):
        (unscaled,), found_inf = unscale([gradient])
        assert isinstance(unscaled, tf.IndexedSlices)
        return unscaled.values, unscaled.indices, found_inf

    values, indices, found_inf = run(slices([[4.0, 8.0], [2.0, 0.0]], [3, 3]))
    assert values.numpy().tolist() == [[1.0, 2.0], [0.5, 0.0]]
    assert indices.numpy().tolist() == [3, 3]
    assert not found_inf


@CALLS
@pytest.mark.parametrize(
    ("dtype", "values", "indices", "expected"),
    [
        pytest.param(
            "float16", [64000, 64000], [5, 5], True, id="duplicates_overflow"
        ),
        pytest.param(
            "float16", [64000, 64000], [5, 6], False, id="other_rows_do_not"
        ),
        pytest.param(
            "float16", [64000, -64000], [5, 5], False, id="duplicates_cancel"
        ),
        pytest.param("float32", [1, np.nan], [1, 9], True, id="nan"),
        pytest.param("float32", [np.inf, 1], [1, 9], True, id="inf"),
        pytest.param("bfloat16", [2e38, 2e38], [1, 1], True, id="bfloat16"),
        pytest.param("float64", [1e300, 1], [1, 1], False, id="float64"),
    ],
)
def test_a_sparse_gradient_is_judged_by_its_rows(
    call, dtype, values, indices, expected
):
    gradient = slices([[v] for v in values], indices, dtype=dtype)
    found = call(lambda g: unscale([g])[1])(gradient)
    assert bool(found) is expected
    assert bool(gradient_lists.found_inf([gradient])) is expected


def test_no_row_without_a_slice_is_made():
    """The largest tensor is as large as the slices, not as the table."""

    @tf.function
    def run(gradient):
        (unscaled,), found_inf = unscale([gradient])
        return unscaled.values, found_inf

    graph = run.get_concrete_function(slices([[1.0, 2.0]], [3], 10**6)).graph
    sizes = [
        output.shape.num_elements() or 0
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.dtype.is_floating
    ]
    assert max(sizes) <= 2


@CALLS
@pytest.mark.parametrize("optimizer_name", ["sgd", "adam", "adagrad"])
def test_an_embedding_trains_as_with_the_bare_optimizer(optimizer_name, call):
    table = np.arange(12, dtype="float32").reshape(6, 2)

    def train(wraps):
        variable = keras.Variable(table)
        optimizer = keras.optimizers.get(optimizer_name)
        scale = 1.0
        if wraps:
            optimizer = mp.wrap(optimizer, initial_scale=4.0)
            scale = optimizer.scale_loss(1.0)
        optimizer.build([variable])
        step = call(lambda gradient: optimizer.apply([gradient]))
        for i in range(3):
            values = scale * np.array([[1.0, i], [2.0, -1.0]], "float32")
            step(slices(values, [3, 1 + i], rows=6))
        return variable.numpy()

    np.testing.assert_array_equal(train(True), train(False))


def test_missing_gradients_pass():
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer.scale_loss(1.0)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, tf.constant([2.0])], [a, b])
    assert (float(a[0]), float(b[0])) == (1.0, 0.5)
    (missing, present), found_inf = optimizer.unscale([None, tf.constant(2.0)])
    assert missing is None
    assert float(present) == 0.5
    assert not found_inf


@pytest.mark.parametrize(
    "call", [lambda f: f, tf.function], ids=["eager", "graph"]
)
def test_no_gradient_at_all_raises_the_plain_error(call):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap("sgd")
    optimizer.scale_loss(1.0)
    with pytest.raises(ValueError, match="No gradients provided") as error:
        call(lambda: optimizer.apply([None], [variable]))()
    assert "Cond" not in str(error.value)
