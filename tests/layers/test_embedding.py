"""Embedding: exact ids, exact rows, sparse gradients, quantization."""

import warnings

import keras
import ml_dtypes
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes

from tf_mixprec import layers

SIZE = 70000
IDS = np.array([[0, 2049, 4099], [65537, 69999, 2047]])


def table(**arguments):
    """Returns an embedding whose row i is i, and i modulo 128."""
    layer = layers.Embedding(SIZE, 2, **arguments)
    layer.build()
    rows = np.arange(SIZE)
    layer.set_weights([np.stack([rows, rows % 128], 1).astype(layer.dtype)])
    return layer


@pytest.mark.parametrize(
    "dtype", ["int32", "int64", "uint32", "float32", "float64"]
)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_ids_are_exact(dtype, policy):
    layer = table(dtype=policy)
    outputs = layer(IDS.astype(dtype))
    np.testing.assert_array_equal(arrays(outputs)[0][..., 1], IDS % 128)
    functional = keras.Input((3,), dtype="float32")
    model = keras.Model(functional, layer(functional))
    outputs = model(IDS.astype("float32"))
    np.testing.assert_array_equal(arrays(outputs)[0][..., 1], IDS % 128)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_are_rounded_once(dtype):
    layer = table(dtype=f"mixed_{dtype}")
    ids = IDS % 65504
    expected = ids.astype(
        {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    )
    outputs = layer(ids)
    assert dtypes(outputs) == {dtype}
    np.testing.assert_array_equal(
        arrays(outputs)[0][..., 0], expected.astype("float64")
    )


def test_negative_and_large_ids_are_what_they_are_in_keras():
    ids = np.array([[-1, -SIZE, SIZE - 1]])
    theirs = keras.layers.Embedding(SIZE, 2, dtype="float32")
    theirs.build()
    ours = table(dtype="float32")
    theirs.set_weights(ours.get_weights())
    np.testing.assert_array_equal(*arrays([ours(ids), theirs(ids)]))
    ids = np.array([[SIZE + 5]])
    results = []
    for layer in (theirs, ours):
        try:
            results.append(arrays(layer(ids))[0].tolist())
        except Exception as error:
            results.append(type(error))
    assert str(results[0]) == str(results[1])


def test_zero_is_masked():
    layer = layers.Embedding(5, 2, mask_zero=True, dtype="mixed_float16")
    layer.build()
    mask = layer.compute_mask(np.array([[1, 0]]))
    assert np.asarray(mask).tolist() == [[True, False]]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="of TensorFlow"
)
@pytest.mark.parametrize(
    "policy", ["float32", "mixed_float16", "mixed_bfloat16", "bfloat16"]
)
@pytest.mark.parametrize("nested", [False, True])
def test_the_table_is_not_cast_and_its_gradient_is_sparse(policy, nested):
    import tensorflow as tf

    layer = table(dtype=policy)

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__(dtype=policy)
            self.inner = layer

        def call(self, inputs):
            return self.inner(inputs)

    called = Outer() if nested else layer
    called(IDS)
    variable = layer.trainable_variables[0].value

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            outputs = tf.cast(called(ids), "float32")
            loss = tf.reduce_sum(outputs[..., 1])
        return tape.gradient(loss, variable)

    graph = gradient.get_concrete_function(tf.constant(IDS)).graph
    casts = [op for op in graph.get_operations() if op.type == "Cast"]
    assert not [op for op in casts if op.inputs[0].shape[:1] == [SIZE]]
    slices = gradient(tf.constant(IDS))
    assert isinstance(slices, tf.IndexedSlices)
    expected = np.zeros((SIZE, 2))
    expected[IDS.ravel(), 1] = 1.0
    dense = tf.convert_to_tensor(tf.cast(slices.values, "float32"))
    total = np.zeros((SIZE, 2))
    np.add.at(total, slices.indices.numpy(), dense.numpy())
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        ("mixed_float16", "int8"),
        ("mixed_bfloat16", "int8"),
        pytest.param("float32", "int8", marks=pytest.mark.slow),
        pytest.param("float32", "int4", marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", "int4", marks=pytest.mark.slow),
        pytest.param("mixed_float16", "int4", marks=pytest.mark.slow),
    ],
)
def test_quantization_is_that_of_keras(policy, mode):
    results = []
    for module in (keras.layers, layers):
        layer = module.Embedding(7, 4, dtype=policy)
        layer.build()
        layer.set_weights([np.linspace(-1, 1, 28).reshape(7, 4)])
        try:
            layer.quantize(mode)
        except ValueError as error:  # int8 with float16
            results.append(str(error)[:60])
            continue
        assert dtypes(layer(np.array([1]))) == dtypes(layer(keras.Input(())))
        results.append(arrays(layer(np.array([[1, 6]])))[0])
    if isinstance(results[0], str):
        assert results[0] == results[1]
    else:
        # Keras rounds the scale too.
        np.testing.assert_allclose(*results, atol=2.0**-7)


def test_a_model_is_quantized():
    layer = layers.Embedding(7, 4, dtype="float32")
    model = keras.Sequential([layer, keras.layers.Dense(2, dtype="float32")])
    model(np.array([[1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the input layer is not quantized
        model.quantize("int8")
    assert [x.quantization_mode for x in model.layers] == ["int8", "int8"]


def test_subclasses_are_not_quantized():
    class Mine(layers.Embedding):
        pass

    layer = Mine(7, 4)
    layer.build()
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")


def test_lora_adds_to_the_rows():
    layer = table(dtype="mixed_float16")
    layer.enable_lora(1)
    assert len(layer.trainable_weights) == 2
    a, b = layer.lora_embeddings_a, layer.lora_embeddings_b
    a.assign(np.full(a.shape, 0.5)), b.assign(np.full(b.shape, 2.0))
    outputs = arrays(layer(IDS))[0]
    np.testing.assert_array_equal(outputs[..., 1], IDS % 128 + 1.0)
