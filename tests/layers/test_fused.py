"""Fused operations against NumPy in float64, and against Keras's layers."""

import math

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.layers import fused

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def inputs(shape, dtype):
    x = np.random.default_rng(0).normal(2.0, 3.0, shape)
    return x.astype(DTYPES[dtype])


def layer_of(dtype, rank=2, **arguments):
    layer = mp.layers.BatchNormalization(
        momentum=0.75,
        gamma_initializer=keras.initializers.Constant(1.5),
        beta_initializer=keras.initializers.Constant(-0.5),
        dtype=f"mixed_{dtype}",
        **arguments,
    )
    layer.build((None,) * (rank - 1) + (3,))
    return layer


def operations(layer, x, **options):
    function = tf.function(lambda x: layer(x, **options))
    graph = function.get_concrete_function(x).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8, 3), (4, 5, 3), (2, 4, 4, 3), (1, 3)])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_batch_normalization(shape, dtype, jit_compile):
    x = inputs(shape, dtype)
    wide = x.astype("float64")
    axes = tuple(range(len(shape) - 1))
    mean, variance = wide.mean(axes), wide.var(axes)
    layer = layer_of(dtype, len(shape))
    call = tf.function(layer, jit_compile=jit_compile)
    for expected_mean, expected_variance, options in (
        (mean, variance, {"training": True}),
        (mean * 0.25, 0.75 + variance * 0.25, {"training": False}),
    ):
        scale = 1.5 / np.sqrt(expected_variance + layer.epsilon)
        expected = (wide - expected_mean) * scale - 0.5
        outputs = call(tf.constant(x), **options)
        assert outputs.dtype.name == dtype
        assert outputs.shape == shape
        np.testing.assert_allclose(
            outputs.numpy().astype("float64"),
            expected,
            rtol=2 * EPS[dtype],
            atol=2 * EPS[dtype],
        )
    np.testing.assert_allclose(layer.moving_mean, mean * 0.25, rtol=1e-5)
    np.testing.assert_allclose(
        layer.moving_variance, 0.75 + variance * 0.25, rtol=1e-5
    )


def test_it_is_one_operation_without_casts():
    layer = layer_of("bfloat16", 3)
    x = tf.constant(inputs((4, 4, 3), "bfloat16"))
    for training in (True, False):
        found = operations(layer, x, training=training)
        assert "FusedBatchNormV3" in found
        assert "SquaredDifference" not in found


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"axis": 1}, {}),
        ({"synchronized": True}, {}),
        ({}, {"mask": tf.constant([[True, False, True]])}),
    ],
)
def test_what_it_does_not_fit_is_composed(arguments, options):
    layer = mp.layers.BatchNormalization(dtype="mixed_bfloat16", **arguments)
    layer.build((1, 3, 3))
    x = tf.constant(inputs((1, 3, 3), "bfloat16"))
    found = operations(layer, x, training=True, **options)
    assert "FusedBatchNormV3" not in found


@pytest.mark.parametrize("arguments", [{"scale": False}, {"center": False}])
def test_without_scale_or_center(arguments):
    layer = mp.layers.BatchNormalization(dtype="mixed_bfloat16", **arguments)
    x = inputs((64, 3), "bfloat16")
    wide = x.astype("float64")
    expected = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-3)
    np.testing.assert_allclose(
        layer(tf.constant(x), training=True).numpy().astype("float64"),
        expected,
        rtol=2**-7,
        atol=2**-7,
    )


@pytest.mark.parametrize("trainable", [True, False])
def test_gradients_are_those_of_keras_in_float32(trainable):
    x = inputs((16, 4, 3), "bfloat16")
    upstream = inputs((16, 4, 3), "bfloat16")
    results = []
    for layer, dtype in (
        (layer_of("bfloat16", 3), tf.bfloat16),
        (keras.layers.BatchNormalization(momentum=0.75), tf.float32),
    ):
        if not layer.built:
            layer.build(x.shape)
        layer.gamma.assign([1.5] * 3)
        layer.trainable = trainable
        given = tf.cast(tf.constant(x), dtype)
        with tf.GradientTape() as tape:
            tape.watch([given, layer.gamma.value, layer.beta.value])
            outputs = layer(given, training=True)
        results.append(
            tape.gradient(
                outputs,
                [given, layer.gamma.value, layer.beta.value],
                tf.cast(tf.constant(upstream), dtype),
            )
        )
    for ours, expected in zip(*results, strict=True):
        expected = expected.numpy()
        np.testing.assert_allclose(
            ours.numpy().astype("float32"),
            expected,
            rtol=2**-6,
            atol=2**-6 * np.abs(expected).max(),
        )


def exact_gelu(x):
    """Value and derivative, in float64."""
    erf = np.vectorize(math.erf)(x / math.sqrt(2))
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return 0.5 * x * (1 + erf), 0.5 * (1 + erf) + x * density


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 1024), (5, 3), ()])
def test_gelu(shape, dtype):
    x = inputs(shape, dtype) if shape else DTYPES[dtype](0.7)
    value, derivative = exact_gelu(x.astype("float64"))
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        outputs = fused.wide_gelu(given)
    gradient = tape.gradient(outputs, given)
    assert outputs.dtype.name == gradient.dtype.name == dtype
    for ours, expected in ((outputs, value), (gradient, derivative)):
        np.testing.assert_allclose(
            ours.numpy().astype("float64"),
            expected,
            rtol=EPS[dtype],
            atol=2.0**-22,
        )


def test_gelu_of_float32_is_that_of_keras():
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    np.testing.assert_array_equal(
        fused.wide_gelu(tf.constant(x)), keras.activations.gelu(x)
    )


def test_only_large_rows_of_a_known_size_are_compiled():
    """Each shape costs a compilation."""
    for spec, compiles in (
        ((None, 1024), True),
        ((None, None, 1024), False),
        ((None, 8), False),
    ):
        function = tf.function(fused.wide_gelu).get_concrete_function(
            tf.TensorSpec(spec, tf.bfloat16)
        )
        found = {op.type for op in function.graph.get_operations()}
        assert ("Erfc" not in found and "Erf" not in found) == compiles
