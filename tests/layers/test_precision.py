"""`Precision`: any layer under another policy."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes

import tf_mixprec as mp
from tf_mixprec import layers

BIG = np.array([[70000.0, -69999.0]], "float32")


def ones(units, **arguments):
    return keras.layers.Dense(units, kernel_initializer="ones", **arguments)


@pytest.mark.parametrize("outer", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("built", [False, True])
def test_inside_and_outside(outer, built):
    dense = ones(1, dtype=outer)
    if built:
        dense.build((None, 2))
    layer = layers.Precision(dense, "float32", dtype=outer)
    outputs = layer(BIG)
    assert dtypes(outputs) == {keras.DTypePolicy(outer).compute_dtype}
    assert dtypes(layer(keras.Input((2,)))) == dtypes(outputs)
    np.testing.assert_array_equal(arrays(outputs)[0], [[1.0]])
    assert layer.layer is dense
    assert dense.compute_dtype == "float32"
    assert layer.dtype_policy == keras.DTypePolicy(outer)
    assert [id(w) for w in layer.trainable_weights] == [
        id(w) for w in dense.trainable_weights
    ]


def test_16_bits_inside_of_float32():
    layer = layers.Precision(ones(1), "mixed_float16", dtype="float32")
    outputs = layer(np.array([[1.0, 2.0**-11]]))
    assert dtypes(outputs) == {"float32"}
    np.testing.assert_array_equal(arrays(outputs)[0], [[1.0]])


def test_the_policy_may_be_any():
    for policy in (
        "params=float32,compute=float16,output=float32",
        mp.Policy("mixed_float16", output_dtype="float32"),
        keras.DTypePolicy("mixed_float16"),
    ):
        layer = layers.Precision(ones(1), policy, dtype="float32")
        assert layer.layer.compute_dtype == "float16"
        config = layer.get_config()
        assert layers.Precision.from_config(config).get_config() == config


def make_attention():
    return keras.layers.MultiHeadAttention(2, 4)


def make_sequential():
    return keras.Sequential(
        [ones(2), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )


def make_functional():
    inputs = keras.Input((2,))
    return keras.Model(inputs, ones(2)(inputs))


def make_recurrent():
    return keras.layers.Bidirectional(keras.layers.LSTM(3))


@keras.saving.register_keras_serializable("tests")
class Block(keras.layers.Layer):
    """Makes one layer at once and one in `build`, without `dtype`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = ones(2)

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second = ones(2)
        self.second.build(input_shape)

    def call(self, inputs):
        return self.second(self.first(inputs))


@keras.saving.register_keras_serializable("tests")
class Unbuilt(keras.layers.Layer):
    """Builds its layer when called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = ones(2)

    def call(self, inputs, training=None):
        return self.inner(inputs)


def all_layers(layer):
    return [layer, *layer._flatten_layers(include_self=False)]


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (make_attention, [(3, 2), (4, 2)]),
        (make_sequential, [(2,)]),
        (make_functional, [(2,)]),
        (make_recurrent, [(3, 2)]),
        (Block, [(2,)]),
        (Unbuilt, [(2,)]),
    ],
)
def test_composite_layers_are_float32_throughout(make, shapes, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    inputs = [keras.Input(shape) for shape in shapes]
    layer = layers.Precision(make(), "float32")
    model = keras.Model(inputs, layer(*inputs))
    for each in all_layers(layer.layer):
        assert each.compute_dtype == "float32", each
    data = [np.full((2, *shape), 7e4, "float32") for shape in shapes]
    outputs = model(data)
    assert dtypes(outputs) == dtypes(model.outputs) == {"float16"}
    # Above 65504 inside; what comes out is out of range for float16.
    inner = layer.layer(*data)
    assert np.isfinite(arrays(inner)[0]).all()
    assert len(layer.weights) == len(layer.layer.weights) > 0
    if make is Unbuilt:
        return  # Keras itself warns when it loads such a layer
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    for each in all_layers(loaded.layers[-1].layer):
        assert each.compute_dtype == "float32", each
    np.testing.assert_array_equal(arrays(loaded(data)), arrays(outputs))
    path = tmp_path / "x.weights.h5"
    loaded.set_weights([np.ones_like(w) for w in loaded.get_weights()])
    model.save_weights(path)
    loaded.load_weights(path)
    np.testing.assert_array_equal(arrays(loaded(data)), arrays(outputs))


def test_arguments_reach_the_layer():
    layer = layers.Precision(make_attention(), "float32", dtype="float32")
    x = np.random.default_rng(0).normal(size=(1, 3, 2)).astype("float32")
    outputs, scores = layer(
        x, x, use_causal_mask=True, return_attention_scores=True
    )
    assert np.all(arrays(scores)[0][0, :, 0, 1:] == 0)
    layer = layers.Precision(keras.layers.Dropout(0.5), "float32")
    x = np.ones((1, 100), "float32")
    assert np.any(arrays(layer(x, training=True))[0] == 0)
    assert np.all(arrays(layer(x))[0] == 1)
    model = keras.Sequential([keras.Input((100,)), layer])
    assert np.any(arrays(model(x, training=True))[0] == 0)


@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_a_wrapped_layer_are_updated(training):
    layer = layers.Precision(
        keras.layers.BatchNormalization(momentum=0.0),
        "float32",
        dtype="mixed_float16",
    )
    layer(np.array([[70000.0], [60000.0]], "float32"), training=training)
    mean = arrays(layer.layer.moving_mean)[0]
    np.testing.assert_array_equal(mean, [65000.0 if training else 0.0])


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="tensors of JAX have no attributes",
)
def test_masks_pass_through():
    keras.config.set_dtype_policy("mixed_float16")
    table = layers.Precision(
        keras.layers.Embedding(5, 4, mask_zero=True), "float32"
    )
    x = table(np.array([[1, 2, 0]]))
    assert np.asarray(x._keras_mask).tolist() == [[True, True, False]]
    x = layers.Precision(keras.layers.Dropout(0.5), "float32")(x)
    assert np.asarray(x._keras_mask).tolist() == [[True, True, False]]
    lstm = layers.Precision(keras.layers.LSTM(3), "float32")
    np.testing.assert_array_equal(*arrays([lstm(x), lstm(x[:, :2])]))


def test_what_has_its_own_precision_keeps_it():
    keras.config.set_dtype_policy("mixed_float16")
    pinned = layers.Precision(ones(2), "float32")
    cast = layers.CastTo("bfloat16")
    model = keras.Sequential([ones(2), pinned, cast])
    layers.Precision(model, "mixed_bfloat16")
    assert pinned.layer.compute_dtype == "float32"
    assert pinned.output_dtype == "bfloat16"
    assert cast.output_dtype == "bfloat16"
    assert model.layers[0].compute_dtype == "bfloat16"
    layers.Precision(model, "float32")
    assert cast.output_dtype == "bfloat16"


def test_integers_are_not_cast():
    layer = layers.Precision(keras.layers.Flatten(), "float32", dtype="float16")
    outputs = layer(np.array([[70000]], "int32"))
    assert dtypes(outputs) == {"int32"}


def test_only_layers_are_wrapped():
    with pytest.raises(TypeError, match="must be a Keras layer"):
        layers.Precision("dense", "float32")
