"""Faults of stock Keras's layers: the right value of each in ours."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fault_cases import kinds
from fault_cases import modes

from tf_mixprec import layers
from tf_mixprec.layers.widened_regularizer import WidenedRegularizer

# Spacing of numbers at 1.
EPS = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}
POLICIES = tuple(EPS)
SLOW_BFLOAT16 = pytest.mark.parametrize(
    "policy",
    ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)],
)


def numbers(tensor):
    """Returns a tensor as an array of float64."""
    return np.asarray(tf.cast(tensor, "float64"))


@kinds(38, "policy", *POLICIES)
@pytest.mark.parametrize("mean", [1e5, 1e6, 2020.0, -3e7])
def test_normalization_of_large_numbers(policy, mean):
    # Steps that float32 knows at this mean.
    spread = max(1.0, 2.0**-16 * abs(mean))
    x = np.array([[0.0], [1.0], [-1.0], [3.0]]) * spread + mean
    given = layers.Normalization(mean=mean, variance=spread**2, dtype=policy)
    adapted = layers.Normalization(dtype=policy)
    adapted.adapt(x[:, :1].astype("float32"))
    tolerance = {"rtol": 4 * EPS[policy], "atol": 0.02}
    outputs = numbers(given(x.astype("float32")))
    np.testing.assert_allclose(outputs.ravel(), [0, 1, -1, 3], **tolerance)
    outputs = numbers(adapted(x.astype("float32")))
    expected = (x - x.mean()) / x.std()
    np.testing.assert_allclose(outputs, expected, **tolerance)


@kinds(38, "dtype", "float32", "uint16", "int32", "float64")
@pytest.mark.parametrize("policy", POLICIES)
def test_rescaling_of_16_bit_images(dtype, policy):
    x = np.array([[65535, 0, 32768, 1]], dtype)
    outputs = numbers(layers.Rescaling(1 / 65535.0, dtype=policy)(x))
    np.testing.assert_allclose(outputs, x / 65535.0, rtol=EPS[policy])


@modes(40)
@SLOW_BFLOAT16
@pytest.mark.parametrize(
    "name",
    [
        "MultiHeadAttention",
        pytest.param("GroupedQueryAttention", marks=pytest.mark.slow),
    ],
)
def test_attention_to_large_activations(call, policy, name):
    if name == "MultiHeadAttention":
        theirs, arguments = keras.layers.MultiHeadAttention, (2, 4)
    else:
        theirs, arguments = keras.layers.GroupQueryAttention, (4, 2, 1)
    layer = getattr(layers, name)(*arguments, dtype=policy)
    reference = theirs(*arguments, dtype="float32")
    x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32")
    layer(x, x), reference(x, x)
    reference.set_weights(layer.get_weights())
    mask = np.array([[[True, True, False, False]] * 4])
    mask[0, 3] = False

    def outputs_of(layer, x, scores):
        return layer(
            x,
            x,
            attention_mask=mask,
            use_causal_mask=True,
            return_attention_scores=scores,
        )

    attend = call(lambda x: outputs_of(layer, x, scores=True))
    attend_only = call(lambda x: outputs_of(layer, x, scores=False))
    outputs, scores = map(numbers, attend(tf.constant(x)))
    # What is masked weighs nothing, and what is left alone everything.
    assert scores[..., :3, 2:].max() == 0.0
    np.testing.assert_array_equal(
        scores[0, :, 0, 0], np.ones_like(scores[0, :, 0, 0])
    )
    expected = numbers(outputs_of(reference, x, scores=True)[0])
    np.testing.assert_allclose(outputs, expected, atol=8 * EPS[policy])
    for scale in (30.0, 100.0, 300.0):
        large = tf.constant(x * scale)
        assert np.isfinite(numbers(outputs_of(reference, large, False))).all()
        assert np.isfinite(numbers(attend(large)[0])).all()
        assert np.isfinite(numbers(attend_only(large))).all()


@modes(42)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["Attention", "AdditiveAttention"])
def test_a_fully_masked_row_is_what_it_is_in_float32(call, policy, name):
    layer = getattr(layers, name)(dtype=policy)
    reference = getattr(keras.layers, name)(dtype="float32")
    query = np.ones((1, 2, 4), "float32")
    value = -np.array([[[1.0] * 4, [2.0] * 4, [3.0] * 4]], "float32")
    layer([query, value]), reference([query, value])
    reference.set_weights(layer.get_weights())
    attend = call(lambda q, v, m: layer([q, v], mask=[None, m]))
    for size in (1.0, 40.0, 200.0):
        q, v = tf.constant(query * size), tf.constant(value * size)
        for mask, expected in (
            ([True, False, False], 1.0),
            ([False, False, True], 3.0),
            ([False, False, False], None),
        ):
            mask = tf.constant([mask])
            outputs = numbers(attend(q, v, mask))
            if expected is None:
                # The mean; of large scores, the largest.
                exact = numbers(reference([q, v], mask=[None, mask]))
            else:
                exact = -expected * size
            np.testing.assert_allclose(outputs, exact, rtol=EPS[policy])


@modes(43)
@pytest.mark.parametrize("policy", POLICIES)
def test_layer_normalization_of_large_activations(call, policy):
    x = np.array([[3.0, -2.0, 0.5, 1.7], [1.0, 1.0, 1.0, 1.0]])
    layer = layers.LayerNormalization(epsilon=1e-12, dtype=policy)
    normalize = call(layer)
    row = (x[0] - x[0].mean()) / x[0].std()
    for scale in (1.0, 2.0**8, 2.0**17, 2.0**33):
        outputs = numbers(normalize(tf.constant(x * scale, "float32")))
        np.testing.assert_allclose(outputs[0], row, rtol=EPS[policy])
        np.testing.assert_allclose(outputs[1], np.zeros(4), atol=EPS[policy])


@kinds(44, "groups", 1, 2, -1)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("low", [6e4, 6e5])
def test_group_normalization_of_large_inputs(groups, policy, low):
    x = np.random.default_rng(0).uniform(low, 1.2 * low, (1, 4, 4, 8))
    x = x.astype("float32")
    layer = layers.GroupNormalization(groups, epsilon=1e-12, dtype=policy)
    outputs = numbers(layer(x))
    grouped = x.astype("float64").reshape(16, 8 if groups == -1 else groups, -1)
    mean = grouped.mean((0, 2), keepdims=True)
    expected = (grouped - mean) / grouped.std((0, 2), keepdims=True)
    np.testing.assert_allclose(
        outputs, expected.reshape(x.shape), atol=2 * EPS[policy] + 1e-3
    )


@modes(45)
@pytest.mark.parametrize("policy", POLICIES)
def test_batch_statistics_of_large_inputs(call, policy):
    layer = layers.BatchNormalization(dtype=policy)
    layer.build((2, 1))
    initial = layer.get_weights()
    train = call(lambda x: layer(x, training=True))
    infer = call(lambda x: layer(x, training=False))
    for scale in (1.0, 100.0):
        layer.set_weights(initial)
        x = np.array([[70000.0], [60000.0]], "float32") * scale
        outputs = numbers(train(tf.constant(x)))
        np.testing.assert_array_equal(outputs, [[1.0], [-1.0]])
        # 1% of the batch, and 99% of the initial 0 and 1.
        mean = numbers(layer.moving_mean)
        np.testing.assert_allclose(mean, [650.0 * scale], rtol=1e-5)
        variance = 0.99 + 250000.0 * scale**2
        moving = numbers(layer.moving_variance)
        np.testing.assert_allclose(moving, [variance], rtol=1e-5)
        expected = (x - 650.0 * scale) / np.sqrt(variance + 1e-3)
        outputs = numbers(infer(tf.constant(x)))
        np.testing.assert_allclose(outputs, expected, rtol=2 * EPS[policy])


@modes(46)
@pytest.mark.parametrize(
    "policy",
    [
        "float16",
        "mixed_bfloat16",
        pytest.param("bfloat16", marks=pytest.mark.slow),
        pytest.param("mixed_float16", marks=pytest.mark.slow),
    ],
)
def test_unit_normalization_of_zero_and_of_large_vectors(call, policy):
    layer = layers.UnitNormalization(dtype=policy)
    dtype = keras.DTypePolicy(policy).compute_dtype

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x)

    rows = [[0.0] * 4, [300.0] * 4, [6e4] * 4, [2.0**-14] * 4]
    outputs, gradient = map(numbers, call(both)(tf.constant(rows, dtype)))
    np.testing.assert_array_equal(outputs, [[0.0] * 4] + [[0.5] * 4] * 3)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[0], np.zeros(4))


@kinds(48, "window", 16, 56, 112, 224)
@pytest.mark.parametrize("policy", POLICIES)
def test_averages_of_large_windows(window, policy):
    x = np.random.default_rng(0).random((1, window, window, 1))
    x = x.astype("float32")
    outputs = layers.AveragePooling2D(window, dtype=policy)(x)
    mean = x.mean(dtype="float64")
    np.testing.assert_allclose(numbers(outputs), mean, rtol=EPS[policy])
    outputs = layers.AveragePooling1D(window**2, dtype=policy)(
        x.reshape(1, -1, 1)
    )
    np.testing.assert_allclose(numbers(outputs), mean, rtol=EPS[policy])
    outputs = layers.AveragePooling3D((window, window, 1), dtype=policy)(
        x[..., None]
    )
    np.testing.assert_allclose(numbers(outputs), mean, rtol=EPS[policy])
    for name, shape in (("1D", (1, -1, 1)), ("2D", x.shape)):
        layer = getattr(layers, f"GlobalAveragePooling{name}")(dtype=policy)
        outputs = numbers(layer(x.reshape(shape) * 1e5))
        if policy == "mixed_bfloat16" or mean * 1e5 < 65504:
            np.testing.assert_allclose(outputs, mean * 1e5, rtol=EPS[policy])


@kinds(52, "way", "layer", "regularizer", "argument")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1.0, 40.0, 1000.0])
def test_activity_losses_are_float32(way, policy, size):
    # One sample: older versions of Keras do not divide by their number.
    x = np.full((1, 1), size, "float32")
    if way == "regularizer":
        layer = keras.layers.Dense(
            64,
            kernel_initializer="ones",
            activity_regularizer=WidenedRegularizer(
                keras.regularizers.L2(1e-6)
            ),
            dtype=policy,
        )
    elif way == "argument":
        x = np.repeat(x, 64, 1)
        layer = layers.Rescaling(
            1.0, activity_regularizer=keras.regularizers.L2(1e-6), dtype=policy
        )
    else:
        x = np.repeat(x, 64, 1)
        layer = layers.ActivityRegularization(l2=1e-6, dtype=policy)
    layer(x)
    (loss,) = layer.losses
    assert loss.dtype == "float32"
    np.testing.assert_allclose(float(loss), 64e-6 * size**2, rtol=1e-5)


@kinds(59, "jit_compile", True, False)
@SLOW_BFLOAT16
@pytest.mark.parametrize(
    "interpolation",
    ["bilinear", pytest.param("nearest", marks=pytest.mark.slow)],
)
def test_upsampling_trains(jit_compile, policy, interpolation):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Conv2D(2, 1, activation="relu"),
            layers.UpSampling2D(interpolation=interpolation),
            keras.layers.Conv2D(1, 1, dtype="float32"),
        ]
    )
    model.compile("sgd", "mse", jit_compile=jit_compile)
    generator = np.random.default_rng(0)
    x, y = generator.random((2, 4, 4, 1)), generator.random((2, 8, 8, 1))
    losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
