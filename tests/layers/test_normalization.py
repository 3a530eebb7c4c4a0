"""Normalization: large numbers, and what preprocessing learns from data."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes

from tf_mixprec import layers

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
DTYPES = pytest.mark.parametrize("dtype", EPS)
TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses a gradient tape"
)
BIG = np.random.default_rng(0).uniform(6e4, 7e4, (4, 6)).astype("float32")


def normalized(x, axis):
    x = x.astype("float64")
    mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / np.sqrt(variance)


@DTYPES
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("LayerNormalization", {}, normalized(BIG, -1)),
        ("GroupNormalization", {"groups": 1}, normalized(BIG, -1)),
        ("BatchNormalization", {}, normalized(BIG, 0)),
        (
            "RMSNormalization",
            {},
            BIG / np.sqrt((BIG.astype("float64") ** 2).mean(-1, keepdims=True)),
        ),
        (
            "UnitNormalization",
            {},
            BIG / np.sqrt((BIG.astype("float64") ** 2).sum(-1, keepdims=True)),
        ),
    ],
)
def test_numbers_above_65504(name, arguments, expected, dtype):
    layer = getattr(layers, name)(**arguments, dtype=f"mixed_{dtype}")
    call = {"training": True} if name == "BatchNormalization" else {}
    x = BIG
    if name == "GroupNormalization":
        x = BIG[:, None, :]
        expected = expected[:, None, :]
    outputs = arrays(layer(x, **call))[0]
    # The mean of numbers at 7e4 is known to 2**-8 in float32.
    np.testing.assert_allclose(outputs, expected, atol=2 * EPS[dtype])


@DTYPES
@pytest.mark.parametrize("fill", [0.0, 300.0, 1e-6, 6e4])
def test_unit_norm_of_equal_numbers(fill, dtype):
    layer = layers.UnitNormalization(dtype=f"mixed_{dtype}")
    outputs = arrays(layer(np.full((1, 4), fill, "float32")))[0]
    np.testing.assert_array_equal(outputs, np.full((1, 4), 0.5 * (fill > 0)))


@TENSORFLOW
@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "bfloat16"])
def test_a_zero_vector_passes_no_gradient(policy):
    import tensorflow as tf

    layer = layers.UnitNormalization(dtype=policy)
    x = tf.constant(
        [[0.0, 0.0], [3.0, 4.0]], keras.DTypePolicy(policy).compute_dtype
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    gradient = arrays(
        tape.gradient(y, x, tf.constant([[1, 2], [1, 0]], y.dtype))
    )[0]
    # (I - u u^T) / |x| for the second row.
    expected = [[0.0, 0.0], [0.16 * 0.8, -0.12 * 0.8]]
    np.testing.assert_allclose(gradient, expected, rtol=2.0**-6, atol=0)


@TENSORFLOW
@pytest.mark.parametrize(
    "length", [0.0, 1e-23, 1e-20, 1.4e-13, 5e-13, 1e-12, 3e-12, 1.0, 1e18]
)
def test_float32_is_keras_for_vectors_of_any_length(length):
    import tensorflow as tf

    x = tf.constant([[0.6 * length, -0.8 * length, 0.0]])
    results = []
    for module in (keras.layers, layers):
        layer = module.UnitNormalization(dtype="float32")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        gradient = tape.gradient(y, x, tf.constant([[1.0, 2.0, 3.0]]))
        results.append(arrays([y, gradient]))
    theirs, ours = results
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert np.isfinite(ours[1]).all()
    if np.isfinite(theirs[1]).all():
        np.testing.assert_array_equal(ours[1], theirs[1])


@DTYPES
@pytest.mark.parametrize("batched", [False, True])
def test_adapt(batched, dtype):
    data = np.random.default_rng(0).normal(1e5, 30.0, (64, 2))
    data = data.astype("float32")
    layer = layers.Normalization(dtype=f"mixed_{dtype}")
    if batched:
        tf = pytest.importorskip("tensorflow")
        layer.adapt(tf.data.Dataset.from_tensor_slices(data).batch(16))
    else:
        layer.adapt(data)
    outputs = layer(data)
    assert dtypes(outputs) == {dtype}
    mean, variance = data.mean(0, "float64"), data.var(0, "float64")
    expected = (data - mean) / np.sqrt(variance)
    # Numbers up to 4, and a mean known to 2**-8 of 30.
    np.testing.assert_allclose(
        arrays(outputs)[0], expected, atol=4 * EPS[dtype]
    )


@DTYPES
def test_inverted_normalization_is_rounded_once(dtype):
    layer = layers.Normalization(
        mean=1001.0, variance=9.0, invert=True, dtype=f"mixed_{dtype}"
    )
    x = np.array([[-1.0, 0.0, 0.25]], "float32")
    exact = keras.ops.cast(np.float32([[998.0, 1001.0, 1001.75]]), dtype)
    np.testing.assert_array_equal(*arrays([layer(x), exact]))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int32"])
def test_rescaling_of_raw_numbers(dtype):
    x = np.array([[0, 255, 65535 if dtype != "uint8" else 128]], dtype)
    layer = layers.Rescaling(1 / 255, offset=-0.5, dtype="mixed_float16")
    outputs = layer(x)
    assert dtypes(outputs) == {"float16"}
    np.testing.assert_allclose(
        arrays(outputs)[0], x / 255.0 - 0.5, rtol=2.0**-11
    )


def test_in_a_pipeline_of_tensorflow():
    import tensorflow as tf

    normalization = layers.Normalization(
        mean=1e5, variance=1e4, dtype="mixed_float16"
    )
    normalization.build((None, 1))
    rescaling = layers.Rescaling(1 / 65535, dtype="mixed_float16")
    data = tf.data.Dataset.from_tensors(
        tf.constant([[100000.0], [100100.0], [99900.0]])
    )
    (a,) = data.map(normalization)
    assert (a.dtype, a.numpy().ravel().tolist()) == ("float16", [0, 1, -1])
    data = tf.data.Dataset.from_tensors(np.array([[65535], [0]], "uint16"))
    (b,) = data.map(rescaling)
    assert (b.dtype, b.numpy().ravel().tolist()) == ("float16", [1, 0])
