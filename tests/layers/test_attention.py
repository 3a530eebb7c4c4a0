"""Attention: large activations, masks, scores, dropout."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import class_of
from layers.cases import dtypes

from tf_mixprec import layers
from tf_mixprec.layers.keras_internals import sublayers

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
ARGUMENTS = {
    "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
    "GroupedQueryAttention": {
        "head_dim": 4,
        "num_query_heads": 4,
        "num_key_value_heads": 2,
    },
}
DTYPES = pytest.mark.parametrize("dtype", EPS)
NAMES = pytest.mark.parametrize("name", ARGUMENTS)


def pair(name, dtype, **arguments):
    """Returns Keras's float32 layer and our mixed one with its weights."""
    arguments = {**ARGUMENTS[name], **arguments}
    reference = class_of(keras.layers, name)(**arguments, dtype="float32")
    layer = getattr(layers, name)(**arguments, dtype=f"mixed_{dtype}")
    x = np.ones((1, 2, 8), "float32")
    reference(x, x), layer(x, x)
    generator = np.random.default_rng(3)
    layer.set_weights(
        [generator.normal(size=w.shape) * 0.5 for w in reference.weights]
    )
    reference.set_weights(layer.get_weights())
    return reference, layer


def sequences(scale=1.0, length=6):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, length, 8)) * scale
    return x.astype("float32")


def float64_attention(layer, x, mask):
    """Returns output and scores of `MultiHeadAttention`, in NumPy."""
    w = {v.path.split("/", 1)[1]: arrays(v)[0] for v in layer.weights}

    def projected(name):
        kernel, bias = w[f"{name}/kernel"], w[f"{name}/bias"]
        return (
            np.einsum("bsd,dnh->bnsh", x.astype("float64"), kernel)
            + (bias[:, None, :])
        )

    query, key, value = map(projected, ("query", "key", "value"))
    logits = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    logits = np.where(mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum(
        "bnsh,nhd->bsd", weights @ value, w["attention_output/kernel"]
    )
    return output + w["attention_output/bias"], weights


@DTYPES
@pytest.mark.parametrize("scores", [False, True])
def test_multi_head_attention_is_that_of_float64(dtype, scores):
    _, layer = pair("MultiHeadAttention", dtype)
    x = sequences()
    causal = np.tril(np.ones((6, 6), bool))
    expected = float64_attention(layer, x, causal)
    outputs = layer(x, x, use_causal_mask=True, return_attention_scores=scores)
    assert dtypes(outputs) == {dtype}
    outputs = arrays(outputs)
    # Inputs, weights, projections and output are rounded to 16 bits.
    for a, b in zip(outputs, expected, strict=False):
        tolerance = 4 * EPS[dtype] * np.max(np.abs(b))
        np.testing.assert_allclose(a, b, atol=tolerance)
    if scores:
        assert np.all(outputs[1][..., ~causal] == 0.0)


@DTYPES
@NAMES
@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(30.0, marks=pytest.mark.slow),
        pytest.param(100.0, marks=pytest.mark.slow),
        300.0,
    ],
)
@pytest.mark.parametrize("scores", [False, True])
def test_large_activations_stay_finite(name, dtype, scale, scores):
    reference, layer = pair(name, dtype)
    x = sequences(scale)
    arguments = {"return_attention_scores": scores}
    expected = arrays(reference(x, x, **arguments))
    outputs = arrays(layer(x, x, **arguments))
    for a, b in zip(outputs, expected, strict=True):
        assert np.isfinite(a).all()
        # Scores of thousands choose one key, the same one nearly always.
        close = np.abs(a - b) <= 0.05 * np.max(np.abs(b))
        assert close.mean() > 0.9


@DTYPES
@NAMES
@pytest.mark.parametrize(
    ("masked", "scores"),
    [
        ("padding", True),
        ("nothing left", False),
        pytest.param("both", False, marks=pytest.mark.slow),
        pytest.param("nothing left", True, marks=pytest.mark.slow),
        pytest.param("padding", False, marks=pytest.mark.slow),
        pytest.param("causal", False, marks=pytest.mark.slow),
        pytest.param("causal", True, marks=pytest.mark.slow),
        pytest.param("both", True, marks=pytest.mark.slow),
    ],
)
def test_masks_are_those_of_float32(name, dtype, masked, scores):
    reference, layer = pair(name, dtype)
    x = sequences()
    mask = np.ones((2, 6, 6), bool)
    if masked in ("padding", "both"):
        mask[1, :, 4:] = False
    if masked == "nothing left":
        mask[0, 2] = False
    arguments = {"return_attention_scores": scores}
    if masked != "causal":
        arguments["attention_mask"] = mask
    if masked in ("causal", "both"):
        arguments["use_causal_mask"] = True
        mask &= np.tril(np.ones((6, 6), bool))
    expected = arrays(reference(x, x, **arguments))
    outputs = arrays(layer(x, x, **arguments))
    for a, b in zip(outputs, expected, strict=True):
        tolerance = 4 * EPS[dtype] * np.max(np.abs(b))
        np.testing.assert_allclose(a, b, atol=tolerance)
    if scores:
        assert np.all(
            outputs[1][~np.broadcast_to(mask[:, None], outputs[1].shape)] == 0.0
        )
    # What is masked has no influence at all.
    if masked == "padding":
        x[1, 4:] = 1e4
        changed = arrays(layer(x, x, **arguments))
        np.testing.assert_array_equal(changed[0][1, :4], outputs[0][1, :4])


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="tensors of JAX have no attributes",
)
@DTYPES
@NAMES
def test_padding_of_an_embedding_is_masked(name, dtype):
    table = layers.Embedding(9, 8, mask_zero=True, dtype=f"mixed_{dtype}")
    _, layer = pair(name, dtype)
    results = []
    for ids in ([[1, 2, 3]], [[1, 2, 3, 0, 0]]):
        x = table(np.array(ids))
        arguments = {}
        if name == "GroupedQueryAttention":  # in Keras, its layers warn
            arguments = {"value_mask": x._keras_mask}
            x = keras.ops.copy(x)
        results.append(arrays(layer(x, x, **arguments))[0][:, :3])
    np.testing.assert_array_equal(*results)


@DTYPES
@NAMES
def test_another_policy_leaves_the_scores_in_float32(name, dtype):
    reference, other = pair(name, dtype, dropout=0.5, seed=7)
    layer = getattr(layers, name)(**reference.get_config())
    x = sequences(100.0)
    layer(x, x)
    layer.set_weights(reference.get_weights())
    wrapped = layers.Precision(layer, f"mixed_{dtype}", dtype="float32")
    projections = [x for x in sublayers(layer) if x.weights]
    assert {x.compute_dtype for x in projections} == {dtype}
    arguments = {"return_attention_scores": True}
    for a, b in zip(
        arrays(wrapped(x, x, **arguments)),
        arrays(other(x, x, **arguments)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@DTYPES
@NAMES
def test_dropout_drops_what_float32_drops(name, dtype):
    reference, layer = pair(name, dtype, dropout=0.5, seed=7)
    x = sequences()
    arguments = {"return_attention_scores": True, "training": True}
    expected = arrays(reference(x, x, **arguments))
    outputs = arrays(layer(x, x, **arguments))
    for a, b in zip(outputs, expected, strict=True):
        tolerance = 4 * EPS[dtype] * np.max(np.abs(b))
        np.testing.assert_allclose(a, b, atol=tolerance)


@NAMES
def test_flash_attention_is_refused_like_in_keras(name):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow has no flash attention")
    layer = getattr(layers, name)(**ARGUMENTS[name], flash_attention=True)
    x = sequences()
    with pytest.raises(ValueError, match="[Ff]lash attention"):
        layer(x, x)


@DTYPES
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Attention", {}),
        ("Attention", {"use_scale": True}),
        ("Attention", {"score_mode": "concat"}),
        ("AdditiveAttention", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "scale", [pytest.param(1.0, marks=pytest.mark.slow), 300.0]
)
@pytest.mark.parametrize("masked", ["partly", "fully", "causal"])
def test_layers_without_projections_are_float32(
    name, arguments, scale, masked, dtype
):
    generator = np.random.default_rng(0)
    # Of 8 bits, so that float32 and 16-bit inputs are the same numbers.
    query, value, key = (
        (generator.integers(-128, 128, (2, n, 4)) / 128 * scale).astype(
            "float32"
        )
        for n in (3, 5, 5)
    )
    mask = np.ones((2, 5), bool)
    mask[:, 2:] = False
    mask[1] &= masked != "fully"
    call = {
        "mask": [np.array([[True, True, False]] * 2), mask],
        "return_attention_scores": True,
        "use_causal_mask": masked == "causal",
    }
    reference = getattr(keras.layers, name)(**arguments, dtype="float32")
    layer = getattr(layers, name)(**arguments, dtype=f"mixed_{dtype}")
    expected = reference([query, value, key], **call)
    layer([query, value, key], **call)
    layer.set_weights(reference.get_weights())
    outputs = layer([query, value, key], **call)
    exact = keras.tree.map_structure(
        lambda x: keras.ops.cast(x, dtype), expected
    )
    for a, b in zip(arrays(outputs), arrays(exact), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()
    assert dtypes(outputs) == {dtype}


@DTYPES
def test_dropout_of_attention_is_that_of_float32(dtype):
    x = sequences()
    results = []
    for module, policy in (
        (keras.layers, "float32"),
        (layers, f"mixed_{dtype}"),
    ):
        layer = module.Attention(dropout=0.5, seed=3, dtype=policy)
        results.append(keras.ops.cast(layer([x, x], training=True), dtype))
    np.testing.assert_array_equal(*arrays(results))
