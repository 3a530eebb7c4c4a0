"""`CastTo`."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes

import tf_mixprec as mp
from tf_mixprec import layers

FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_floats_are_cast(source, dtype):
    layer = layers.CastTo(dtype)
    x = keras.ops.cast(np.array([[1.0, 3.140625]]), source)
    outputs = layer(x)
    assert dtypes(outputs) == {dtype}
    np.testing.assert_array_equal(*arrays([outputs, keras.ops.cast(x, dtype)]))
    assert dtypes(layer(keras.Input((2,), dtype=source))) == {dtype}
    assert dtypes(layer.call(x)) == {dtype}


@pytest.mark.parametrize("source", ["int32", "uint8", "bool"])
def test_anything_else_stays_as_it_is(source):
    layer = layers.CastTo("float16")
    x = np.array([[1, 0]], source)
    outputs = layer(x)
    assert dtypes(outputs) == {source}
    assert np.asarray(outputs).tolist() == x.tolist()
    assert dtypes(layer(keras.Input((2,), dtype=source))) == {source}


def test_structures_are_cast():
    outputs = layers.CastTo("bfloat16")(
        {"a": np.ones((1, 2), "float32"), "b": np.ones((1, 2), "int32")}
    )
    assert dtypes(outputs["a"]) == {"bfloat16"}
    assert dtypes(outputs["b"]) == {"int32"}


def test_the_output_dtype_of_a_policy_counts():
    policy = mp.Policy("float16", "float32", "float32")
    layer = layers.CastTo(policy)
    # Not by way of float16, where it would be inf.
    np.testing.assert_array_equal(arrays(layer(np.array([7e4])))[0], [7e4])
    again = layers.CastTo.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.dtype_policy == policy


def test_it_is_saved(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2), layers.CastTo("float32")]
    )
    path = tmp_path / "model.keras"
    model.save(path)
    keras.config.set_dtype_policy("float32")
    loaded = keras.models.load_model(path)
    x = np.ones((1, 2), "float32")
    assert dtypes(loaded(x)) == dtypes(loaded.outputs) == {"float32"}
    np.testing.assert_array_equal(*arrays([model(x), loaded(x)]))


@pytest.mark.parametrize("dtype", ["int32", "bool", "string"])
def test_only_float_dtypes(dtype):
    with pytest.raises(ValueError, match="must be one of floating-point"):
        layers.CastTo(dtype)
