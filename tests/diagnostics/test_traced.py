"""What reports trace, against what TensorFlow says of that."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_mixprec.diagnostics.traced import traced


@pytest.mark.parametrize("is_ours", [False, True], ids=["tensorflow", "ours"])
def test_many_traces_of_the_same_code_are_no_matter_for_the_log(
    is_ours, caplog
):
    def add(x):
        return x + 1.0

    for _ in range(8):
        function = traced(add) if is_ours else tf.function(add)
        assert float(function(tf.constant(1.0))) == 2.0
    assert ("retracing" in caplog.text) is not is_ours


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_once_for_each_shape(jit_compile):
    shapes = []

    def total(batch, scale):
        x, y, nothing = batch
        assert nothing is None
        shapes.append(tuple(x["a"].shape))
        return {"sum": tf.reduce_sum(x["a"]) * scale + y}

    function = traced(total, jit_compile=jit_compile)
    for size in (2, 3, 2, 3):
        batch = ({"a": np.ones(size, "float32")}, tf.constant(1.0), None)
        result = function(batch, tf.constant(2.0))
        assert float(result["sum"]) == 2.0 * size + 1.0
    assert shapes == [(2,), (3,)]


def test_variables_are_those_of_the_moment():
    variable = keras.Variable(1.0)
    function = traced(lambda: variable + 1.0)
    assert float(function()) == 2.0
    variable.assign(5.0)
    assert float(function()) == 6.0
