"""Models with these layers are saved, loaded and copied."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from layers.cases import CASES
from layers.cases import arrays
from layers.cases import class_of
from layers.cases import dtypes

import tf_mixprec as mp
from tf_mixprec import layers


def model_of_all(policy):
    """Returns a model with every layer, and inputs for it."""
    inputs, outputs, data = [], [], []
    for case in CASES:
        specs = case.specs()
        layer = class_of(layers, case.name)(**case.arguments, dtype=policy)
        inputs += specs
        outputs += keras.tree.flatten(case.call(layer, specs))
        data += [np.repeat(x[:1], 2, axis=0) for x in case.inputs()]
    outputs.append(layers.CastTo("bfloat16")(outputs[0]))
    outputs.append(
        layers.Precision(keras.layers.Dense(2), "float32", dtype=policy)(
            outputs[0]
        )
    )
    return keras.Model(inputs, outputs), data


@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16",
        pytest.param(
            mp.Policy("mixed_bfloat16", output_dtype="float32"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_model_with_every_layer_is_saved(policy, tmp_path):
    model, data = model_of_all(policy)
    generator = np.random.default_rng(0)
    model.set_weights(
        [
            generator.uniform(0.1, 1.0, w.shape).astype(w.dtype)
            for w in model.weights
        ]
    )
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.to_json() == model.to_json()
    for a, b in zip(model.layers, loaded.layers, strict=True):
        assert type(a) is type(b)
        assert a.dtype_policy == b.dtype_policy
    expected, actual = model(data), loaded(data)
    for a, b in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    assert dtypes(actual) == dtypes(copy(data)) == dtypes(model.outputs)


def test_the_package_imports_them():
    assert mp.layers is layers
    assert "layers" in mp.__all__


LOADS = """
import sys
import keras
import tf_mixprec
model = keras.models.load_model(sys.argv[1])
print([type(layer).__module__.split(".")[0] for layer in model.layers])
"""


@pytest.mark.slow
def test_import_of_the_package_is_all_it_takes(tmp_path):
    path = str(tmp_path / "model.keras")
    layer = layers.Softmax(dtype="mixed_float16")
    keras.Sequential([keras.Input((2,)), layer]).save(path)
    result = subprocess.run(
        [sys.executable, "-c", LOADS, path],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "tf_mixprec" in result.stdout, result.stderr


@pytest.mark.parametrize("policy", ["mixed_float16", "float32"])
def test_an_activity_regularizer_is_saved(policy):
    layer = layers.Softmax(
        activity_regularizer=keras.regularizers.L2(0.5), dtype=policy
    )
    config = layer.get_config()
    for _ in range(2):
        layer = layers.Softmax.from_config(config)
        assert layer.get_config() == config
    assert layer.activity_regularizer.regularizer.l2 == 0.5
    theirs = keras.layers.Softmax.from_config(config)
    layer(np.full((1, 2), 3.0)), theirs(np.full((1, 2), 3.0))
    assert dtypes(theirs.losses + layer.losses) == {"float32"}
    np.testing.assert_array_equal(*arrays([layer.losses, theirs.losses]))
