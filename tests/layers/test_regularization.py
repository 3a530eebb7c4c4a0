"""Penalties on activations are float32."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes

from tf_mixprec import layers
from tf_mixprec.layers.widened_regularizer import WidenedRegularizer

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@DTYPES
@pytest.mark.parametrize("fill", [0.5, 40.0, 256.0])
def test_the_loss_is_that_of_float64(fill, dtype):
    layer = layers.ActivityRegularization(
        l1=1e-3, l2=1e-6, dtype=f"mixed_{dtype}"
    )
    # One sample: older versions of Keras do not divide by their number.
    x = np.full((1, 512), fill, "float32")
    outputs = layer(x)
    assert dtypes(outputs) == {dtype}
    np.testing.assert_array_equal(arrays(outputs)[0], x)
    (loss,) = layer.losses
    assert dtypes(loss) == {"float32"}
    expected = 512 * (1e-3 * fill + 1e-6 * fill**2)
    np.testing.assert_allclose(arrays(loss)[0], expected, rtol=1e-6)


@DTYPES
def test_any_layer_regularizes_its_outputs_in_float32(dtype):
    layer = layers.Rescaling(
        2.0, activity_regularizer="l2", dtype=f"mixed_{dtype}"
    )
    layer(np.full((1, 100), 50.0))
    (loss,) = layer.losses
    assert dtypes(loss) == {"float32"}
    np.testing.assert_allclose(arrays(loss)[0], 0.01 * 100 * 1e4, rtol=1e-6)


@DTYPES
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MultiHeadAttention", (2, 4)),
        ("GroupedQueryAttention", (4, 4, 2)),
    ],
)
def test_projections_are_regularized_in_float32(name, arguments, dtype):
    layer = getattr(layers, name)(
        *arguments, activity_regularizer="l2", dtype=f"mixed_{dtype}"
    )
    x = np.random.default_rng(0).normal(size=(1, 3, 8)) * 300.0
    layer(x, x)
    losses = arrays(layer.losses)
    assert dtypes(layer.losses) == {"float32"}
    assert np.isfinite(losses).all()
    assert np.min(losses) > 65504 * 0.01


@DTYPES
def test_fit_adds_it_to_the_loss(dtype):
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                4, kernel_initializer="identity", use_bias=False
            ),
            layers.ActivityRegularization(l2=0.25),
            layers.CastTo("float32"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.full((1, 4), 8.0, "float32")
    history = model.fit(x, x, verbose=0).history
    # 0.25 * 4 * 8**2.
    np.testing.assert_allclose(history["loss"], [64.0], rtol=1e-6)


def test_the_regularizer_is_a_regularizer_of_any_layer():
    regularizer = WidenedRegularizer(keras.regularizers.L2(1e-6))
    layer = keras.layers.Dense(
        64,
        kernel_initializer="ones",
        activity_regularizer=regularizer,
        dtype="mixed_float16",
    )
    layer(np.full((1, 1), 40.0))
    np.testing.assert_allclose(arrays(layer.losses)[0], 0.1024, rtol=1e-6)
    again = keras.layers.Dense.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (
        WidenedRegularizer(regularizer).regularizer is regularizer.regularizer
    )
