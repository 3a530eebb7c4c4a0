"""`mp.Policy`: what it parses, what it makes layers do, how it is saved."""

import copy
import inspect
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("float16",), ("float16", "float16", "float16")),
        (("mixed_float16",), ("float16", "float32", "float16")),
        (("mixed_bfloat16",), ("bfloat16", "float32", "bfloat16")),
        (("mixed_float16", "float16"), ("float16", "float16", "float16")),
        (("float16", "float32"), ("float16", "float32", "float16")),
        (
            ("bfloat16", "float32", "float32"),
            ("bfloat16", "float32", "float32"),
        ),
        (("half",), ("float16", "float16", "float16")),
        (("full",), ("float32", "float32", "float32")),
        (
            ("params=float32,compute=float16,output=float32",),
            ("float16", "float32", "float32"),
        ),
        (("p=f32,c=bf16,o=f32",), ("bfloat16", "float32", "float32")),
        (("o=f32, c=half",), ("float16", "float16", "float32")),
        ((keras.DTypePolicy("mixed_float16"),), ("float16", "float32") * 2),
    ],
    ids=str,
)
def test_dtypes(arguments, expected):
    policy = mp.Policy(*arguments)
    compute, variable, output = expected[:3]
    assert policy.compute_dtype == compute
    assert policy.variable_dtype == variable
    assert policy.output_dtype == output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("int32",), ValueError, "Received: 'int32'"),
        (("mixed_fp16",), ValueError, "mixed_float16.*Received: 'mixed_fp16'"),
        ((None,), TypeError, "Received: None"),
        (("float16", "int8"), ValueError, "variable_dtype='int8'"),
        (("float16", None, "x"), ValueError, "output_dtype='x'"),
        (("params=float32",), ValueError, "compute="),
        (("c=f16,compute=f16",), ValueError, "once"),
        (("c=f16,weights=f16",), ValueError, "misspelt"),
        (("c=f16,o=int8",), ValueError, "o='int8'"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        mp.Policy(*arguments)


POLICIES = [
    "mixed_float16",
    "bfloat16",
    "p=f32,c=f16,o=f32",
    "p=f16,c=f32,o=f16",
    "p=bf16,c=f32,o=f32",
]


@pytest.mark.parametrize("text", POLICIES)
def test_copies_are_equal(text):
    policy = mp.Policy(text)
    assert mp.Policy(str(policy)).get_config() == {
        **policy.get_config(),
        "output_dtype": policy.output_dtype,
    }
    config = json.loads(json.dumps(policy.get_config()))
    assert mp.Policy.from_config(config) == policy
    assert mp.Policy.from_config(config).get_config() == policy.get_config()
    serialized = keras.dtype_policies.serialize(policy)
    assert keras.dtype_policies.deserialize(serialized) == policy
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other == policy
        assert hash(other) == hash(policy)
    assert policy != mp.Policy("float16", "float32", "float16")
    assert policy != "mixed_float16"


@pytest.mark.parametrize("text", POLICIES)
def test_a_saved_layer_keeps_its_policy(text, tmp_path):
    policy = mp.Policy(text)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, dtype=policy),
            keras.layers.Reshape((1, 2)),
            keras.layers.Bidirectional(
                keras.layers.GRU(
                    2, recurrent_initializer="he_normal", dtype=policy
                ),
                dtype=policy,
            ),
        ]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for layer in (*loaded.layers[::2], loaded.layers[2].forward_layer):
        assert layer.dtype_policy == policy
        assert layer.variable_dtype == policy.variable_dtype
    x = np.ones((2, 3), "float32")
    expected = np.asarray(model(x), "float32")
    np.testing.assert_array_equal(np.asarray(loaded(x), "float32"), expected)


def eager(function):
    return function


@pytest.mark.parametrize(
    "call",
    [eager, tf.function, lambda f: tf.function(f, jit_compile=True)],
    ids=["eager", "graph", "xla"],
)
@pytest.mark.parametrize("output", ["float16", "bfloat16", "float32"])
def test_outputs_have_the_output_dtype(call, output):
    policy = mp.Policy("float16", "float32", output)
    layer = keras.layers.Dense(2, dtype=policy)
    symbolic = layer(keras.KerasTensor((1, 3)))
    assert symbolic.dtype == output
    real = call(layer)(tf.ones((1, 3)))
    assert real.dtype == output
    assert layer.kernel.dtype == "float32"


def test_it_computes_in_the_compute_dtype():
    layer = keras.layers.Dense(
        1, use_bias=False, dtype=mp.Policy("float16", "float32", "float32")
    )
    layer.build((1, 1))
    layer.kernel.assign([[1 + 2**-12]])  # rounds to 1 in float16
    assert layer(np.ones((1, 1))).numpy() == 1.0


def test_parts_of_a_layer_return_what_they_compute():
    policy = mp.Policy("bfloat16", "float32", "float32")
    x = np.ones((2, 4, 3), "float32")
    seen = []

    class Cell(keras.layers.LSTMCell):
        def call(self, inputs, states, training=False):
            output, states = super().call(inputs, states, training)
            seen.append(output.dtype)
            return output, states

    layer = keras.layers.RNN(Cell(2, dtype=policy), dtype=policy)
    assert layer(x).dtype == "float32"
    assert set(seen) == {tf.bfloat16}
    attention = keras.layers.MultiHeadAttention(1, 2, dtype=policy)
    assert attention(x, x).dtype == "float32"


def test_structures_masks_and_integers_pass():
    class Layer(keras.layers.Layer):
        def call(self, x):
            return {"a": x, "b": [keras.ops.cast(x, "int32"), None]}

    x = tf.ones((1, 2))
    out = Layer(dtype=mp.Policy("float16", "float32", "bfloat16"))(x)
    assert out["a"].dtype == "bfloat16"
    assert out["b"][0].dtype == "int32"
    assert out["b"][1] is None
    embedding = keras.layers.Embedding(
        4, 2, mask_zero=True, dtype=mp.Policy("float16", "float32", "float32")
    )
    assert embedding(tf.constant([[1, 0]]))._keras_mask.numpy().tolist() == [
        [True, False]
    ]


def test_a_model_has_no_operations_added():
    inputs = keras.Input((3,))
    policy = mp.Policy("float16", "float32", "float32")
    hidden = keras.layers.Dense(2, dtype=policy)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, dtype=policy)(hidden))
    assert len(model.operations) == 3
    assert model.outputs[0].dtype == "float32"
    assert model.predict(np.ones((2, 3)), verbose=0).dtype == np.float32


def test_layers_with_other_policies_do_as_before():
    mp.Policy("float16", "float32", "float32")  # extends `__call__`
    assert keras.layers.Dense(1, dtype="mixed_float16")(
        np.ones((1, 1))
    ).dtype == ("float16")
    assert keras.ops.add(np.float16(1), np.float16(1)).dtype == "float16"
    loaded = keras.layers.Dense.from_config(
        keras.layers.Dense(1, dtype="mixed_bfloat16").get_config()
    )
    assert type(loaded.dtype_policy) is keras.DTypePolicy


def test_the_package_extends_keras_once():
    """Fails if Keras moves or renames what `output_dtypes` extends."""
    for name in ("__call__", "from_config"):
        method = getattr(keras.Operation, name)
        assert (
            "tf_mixprec"
            in inspect.unwrap(method, stop=lambda _: True).__code__.co_filename
        ), name
        original = method.__wrapped__
        assert original.__module__.startswith("keras."), name
    assert issubclass(keras.Layer, keras.Operation)
    assert "__call__" in vars(keras.Operation)
    assert "from_config" in vars(keras.Operation)
