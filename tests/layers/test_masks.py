"""Masks do what they do in float32, and are passed on."""

import keras
import numpy as np
import pytest
from layers.cases import arrays

from tf_mixprec import layers

MASK = np.array([[True, True, False], [True, False, False]])
POLICIES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def masked(dtype="float32"):
    """Returns a batch of sequences with a mask."""
    table = keras.layers.Embedding(
        5, 4, mask_zero=True, embeddings_initializer="ones", dtype=dtype
    )
    return table(np.array([[1, 2, 0], [3, 0, 0]]))


def mask_of(x):
    mask = getattr(x, "_keras_mask", None)
    return None if mask is None else np.asarray(mask).tolist()


PASSING = {
    "ActivityRegularization": {},
    "BatchNormalization": {},
    "GroupNormalization": {"groups": 2},
    "LayerNormalization": {},
    "Normalization": {"mean": 0.0, "variance": 1.0, "axis": None},
    "Rescaling": {"scale": 2.0},
    "UnitNormalization": {},
}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="tensors of JAX have no attributes",
)
@POLICIES
@pytest.mark.parametrize("inputs", ["float32", "mixed"])
@pytest.mark.parametrize("name", PASSING)
def test_masks_are_passed_on(name, inputs, dtype):
    mixed = f"mixed_{dtype}"
    x = masked(mixed if inputs == "mixed" else inputs)
    layer = getattr(layers, name)(**PASSING[name], dtype=mixed)
    assert mask_of(layer(x)) == MASK.tolist()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="tensors of JAX have no attributes",
)
@POLICIES
@pytest.mark.parametrize("name", ["MultiHeadAttention", "Embedding", "CastTo"])
def test_masks_of_other_layers(name, dtype):
    mixed = f"mixed_{dtype}"
    if name == "Embedding":
        layer = layers.Embedding(5, 4, mask_zero=True, dtype=mixed)
        outputs = layer(np.array([[1, 2, 0], [3, 0, 0]]))
    elif name == "CastTo":
        outputs = layers.CastTo(dtype)(masked())
    else:
        layer = layers.MultiHeadAttention(2, 4, dtype=mixed)
        x = masked(mixed)
        outputs = layer(x, x)
    assert mask_of(outputs) == MASK.tolist()


@POLICIES
def test_softmax_masks_like_float32(dtype):
    x = np.array([[1e5, 2e5, 3e5], [1.0, 2.0, 3.0]], "float32")
    layer = layers.Softmax(dtype=f"mixed_{dtype}")
    # Only what is not masked counts; a row without anything is 0.
    expected = [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    mask = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(arrays(layer(x, mask=mask))[0], expected)
    floats = mask.astype("float32")
    np.testing.assert_array_equal(arrays(layer(x, mask=floats))[0], expected)


@POLICIES
def test_batch_normalization_counts_what_is_not_masked(dtype):
    values = np.array([7e4, 6e4, 8e4, 9e4])
    x = np.full((2, 3, 2), 1e9, "float32")
    x[:, :2, 0] = values.reshape(2, 2)
    x[:, :2, 1] = -values.reshape(2, 2)
    mask = np.array([[True, True, False]] * 2)
    layer = layers.BatchNormalization(momentum=0.0, dtype=f"mixed_{dtype}")
    layer(x, training=True, mask=mask)
    mean, variance = arrays([layer.moving_mean, layer.moving_variance])
    expected = [values.mean(), -values.mean()]
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(variance, [values.var()] * 2, rtol=1e-5)


@POLICIES
def test_global_average_pooling_averages_what_is_not_masked(dtype):
    x = np.full((1, 5000, 1), 100.0, "float32")
    mask = np.ones((1, 5000), bool)
    mask[:, :901] = False
    layer = layers.GlobalAveragePooling1D(dtype=f"mixed_{dtype}")
    np.testing.assert_array_equal(arrays(layer(x, mask=mask))[0], [[100.0]])
