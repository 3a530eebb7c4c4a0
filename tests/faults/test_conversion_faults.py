"""Faults of stock Keras under mixed policies, after `mp.convert`.

What stock Keras has mended since stays here, so that it stays mended.
"""

import warnings

import fault_cases
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

L = keras.layers
kinds = fault_cases.kinds
IDS = np.array([[2049, 2909, 4099]])


# Exact in 16 bits, and each row another one.
TABLE = np.random.default_rng(0).choice([-1.0, 1.0], size=(5000, 32))


def embedding():
    return L.Embedding(5000, 32, weights=[TABLE])


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding()

    def call(self, x):
        return self.embedding(x)


def functional():
    inputs = keras.Input((3,))
    return keras.Model(inputs, embedding()(inputs))


MODELS = {
    "sequential": lambda: keras.Sequential([embedding()]),
    "functional": functional,
    "subclassed": Subclassed,
}


@kinds(36, "name", *MODELS)
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_ids_are_not_rounded(name, dtype):
    model = MODELS[name]()
    ids = IDS.astype(dtype)
    model(ids)
    mixed = mp.convert(model, "mixed_float16")
    for got in (mixed(ids).numpy(), mixed.predict(ids, verbose=0)):
        np.testing.assert_array_equal(got, TABLE[IDS])


@kinds(39, "name", "EfficientNetB0", "MobileNetV3Small")
def test_an_application_is_finite(name):
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(32, 32, 3), classes=3
    )
    images = np.random.default_rng(0).uniform(0, 255, (1, 32, 32, 3))
    mixed = mp.convert(model, "mixed_float16")
    np.testing.assert_allclose(mixed(images), model(images), atol=5e-3)


@kinds(49, "policy", "mixed_float16", "mixed_bfloat16")
def test_a_loss_by_hand_gets_float32(policy):
    def dice(y, p):
        return 1 - (2 * tf.reduce_sum(y * p) + 1) / (
            tf.reduce_sum(y) + tf.reduce_sum(p) + 1
        )

    model = keras.Sequential(
        [
            keras.Input((300, 300, 1)),
            L.Conv2D(1, 1, kernel_initializer="ones"),
        ]
    )
    x = np.ones((1, 300, 300, 1), "float32")
    mixed = mp.convert(model, policy)
    assert float(dice(x, mixed(x))) == 0.0


@kinds(53, "policy", "mixed_float16", "mixed_bfloat16")
def test_kernels_are_regularized_in_float32(policy):
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(
                1,
                use_bias=False,
                kernel_initializer=keras.initializers.Constant(1e-3),
                kernel_regularizer=keras.regularizers.L2(0.5),
            ),
            L.Dense(1, use_bias=False),
        ]
    )
    mixed = mp.convert(model, policy)
    mixed.compile(mp.wrap(keras.optimizers.SGD(1.0)), "mse")
    mixed.fit(np.zeros((4, 1)), np.zeros((4, 1)), verbose=0)
    # w - 1.0 * 2 * 0.5 * w
    np.testing.assert_allclose(mixed.layers[0].kernel, 0.0, atol=1e-9)
    assert mixed.losses[0].dtype == "float32"


def fit_one_epoch(model, x, y, policy, **arguments):
    mixed = mp.convert(model, policy)
    # Tracing a recurrent layer takes seconds; one test does it.
    eagerly = policy == "mixed_float16"
    mixed.compile(mp.wrap("adam"), "mse", run_eagerly=eagerly)
    history = mixed.fit(x, y, verbose=0, **arguments)
    assert np.isfinite(history.history["loss"]).all()
    assert int(mixed.optimizer.skipped_steps) == 0
    return mixed


@kinds(56, "name", "LSTM", "GRU")
def test_stateful_layers_train(name):
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(2, 5, 3)),
            getattr(L, name)(4, stateful=True),
            L.Dense(1),
        ]
    )
    x, y = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 1))
    mixed = fit_one_epoch(model, x, y, "mixed_float16", batch_size=2)
    first = mixed.predict(x[:2], verbose=0)
    assert (mixed.predict(x[:2], verbose=0) != first).any()  # it has a state
    mixed.layers[0].reset_states()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("LSTM", id="fault_57_LSTM"),
        pytest.param("GRU", id="fault_57_GRU", marks=pytest.mark.slow),
        pytest.param(
            "Bidirectional", id="fault_57_Bidirectional", marks=pytest.mark.slow
        ),
    ],
)
def test_recurrent_layers_with_a_mask_train(name):
    rng = np.random.default_rng(0)
    recurrent = L.LSTM(4) if name == "Bidirectional" else getattr(L, name)(4)
    if name == "Bidirectional":
        recurrent = L.Bidirectional(recurrent)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            L.Embedding(10, 3, mask_zero=True),
            recurrent,
            L.Dense(1),
        ]
    )
    x = rng.integers(0, 10, (4, 5))
    mixed = fit_one_epoch(model, x, rng.normal(size=(4, 1)), "mixed_bfloat16")
    back = mp.convert(mixed, "float32")
    np.testing.assert_allclose(mixed(x), back(x), atol=2e-2)


@kinds(58, "policy", "mixed_float16", "mixed_bfloat16")
def test_a_decoder_takes_states(policy):
    rng = np.random.default_rng(0)
    encoder, decoder = keras.Input((5, 3)), keras.Input((6, 3))
    _, *states = L.LSTM(4, return_state=True)(encoder)
    recurrent = L.LSTM(4, return_sequences=True)
    hidden = recurrent(decoder, initial_state=states)
    model = keras.Model([encoder, decoder], L.Dense(1)(hidden))
    x = [rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 6, 3))]
    fit_one_epoch(model, x, rng.normal(size=(2, 6, 1)), policy)
    given = [keras.Input((4,)), keras.Input((4,))]
    output = recurrent(decoder, initial_state=given)
    alone = keras.Model([decoder, *given], output)
    x = [x[1], rng.normal(size=(2, 4)), rng.normal(size=(2, 4))]
    x = [each.astype("float32") for each in x]
    np.testing.assert_allclose(
        mp.convert(alone, policy)(x), alone(x), atol=3e-2
    )


@kinds(
    60,
    "name",
    "GaussianNoise",
    "AlphaDropout",
    "GaussianDropout",
    "SpatialDropout1D",
    "UpSampling1D",
)
def test_noise_keeps_the_policy(name):
    arguments = () if name.startswith("Up") else (0.25,)
    model = keras.Sequential(
        [keras.Input((3, 4)), getattr(L, name)(*arguments), L.Dense(1)]
    )
    mixed = mp.convert(model, "mixed_float16")
    assert mixed.layers[0](np.ones((2, 3, 4))).dtype == "float16"
    assert np.isfinite(mixed(np.ones((2, 3, 4)), training=True)).all()


@kinds(61, "name", "MixUp", "CutMix")
def test_images_are_mixed_with_their_labels(name):
    inputs = {
        "images": keras.Input((8, 8, 3), name="images"),
        "labels": keras.Input((2,), name="labels"),
    }
    model = keras.Model(
        inputs, L.Lambda(lambda x: x["images"])(getattr(L, name)()(inputs))
    )
    mixed = mp.convert(model, "mixed_float16")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 8, 8, 3)).astype("float32")
    batch = {"images": images, "labels": np.eye(2, dtype="float32")}
    result = np.asarray(mixed(batch, training=True))
    assert np.isfinite(result).all()
    assert result.min() >= 0
    assert result.max() <= 255


@kinds(62, "name", "preprocess_input", "numpy_constant")
def test_lambdas_work(name):
    function = {
        "preprocess_input": keras.applications.resnet50.preprocess_input,
        "numpy_constant": lambda x: x * np.float32(2.0),
    }[name]
    model = keras.Sequential(
        [keras.Input((2, 2, 3)), L.Lambda(function), L.Dense(1)]
    )
    x = np.full((1, 2, 2, 3), 100.0, "float32")
    mixed = mp.convert(model, "mixed_float16")
    np.testing.assert_allclose(mixed(x), model(x), rtol=2e-2, atol=0.2)


@kinds(63, "policy", "mixed_float16", "mixed_bfloat16")
def test_the_head_says_what_it_returns(policy):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, L.Activation("softmax")(L.Dense(2)(inputs)))
    mixed = mp.convert(model, policy)
    spec = mixed.compute_output_spec(keras.KerasTensor((1, 3)))
    assert mixed.outputs[0].dtype == spec.dtype == "float32"
    assert mixed(np.ones((1, 3))).dtype == "float32"


def images_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(2, 3),
            L.BatchNormalization(),
            L.Flatten(),
            L.Dense(2),
        ]
    )


@kinds(64, "policy", "mixed_float16", "mixed_bfloat16")
def test_export(policy, tmp_path):
    mixed = mp.convert(images_model(), policy)
    mixed.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(served.serve(x), mixed(x), atol=1e-3)


@kinds(65, "policy", "mixed_float16", "mixed_bfloat16")
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tflite_takes_the_model_in_float32_again(policy):
    mixed = mp.convert(images_model(), policy)
    back = mp.convert(mixed, "float32")
    content = tf.lite.TFLiteConverter.from_keras_model(back).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype("float32")
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    output = interpreter.get_output_details()[0]["index"]
    np.testing.assert_allclose(
        interpreter.get_tensor(output), back(x), atol=1e-5
    )


@kinds(66, "policy", "mixed_float16", "mixed_bfloat16")
def test_a_loaded_model_changes_its_precision(policy, tmp_path):
    with mp.policy_scope(policy):
        model = keras.Sequential([keras.Input((3,)), L.Dense(4), L.Dense(2)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x = np.ones((1, 3), "float32")
    assert loaded(x).dtype == policy.removeprefix("mixed_")
    float32 = mp.convert(loaded, "float32")
    assert float32(x).dtype == "float32"
    hidden = x @ loaded.layers[0].kernel.numpy()
    np.testing.assert_allclose(
        float32(x), hidden @ loaded.layers[1].kernel.numpy(), rtol=1e-6
    )


class Outer(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = L.Dense(2)

    def call(self, x):
        return self.inner(x)


@kinds(67, "way", "scope", "rule")
def test_sublayers_follow(way):
    if way == "scope":
        with mp.policy_scope("float32"):
            outer = Outer()
    else:
        model = keras.Sequential([keras.Input((2,)), Outer(), L.Dense(1)])
        rules = mp.PrecisionRules(
            [mp.rules.Rule(policy="float32", path="outer.*")], "mixed_float16"
        )
        outer = mp.convert(model, rules).layers[0]
    assert outer.inner.compute_dtype == "float32"
    assert outer(np.ones((1, 2))).dtype == "float32"


@kinds(68, "policy", "mixed_bfloat16", "mixed_float16")
def test_a_converted_model_is_quantized_where_that_works(policy):
    """float8 on top of a mixed policy; what has none keeps the policy."""
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(4), L.LayerNormalization(), L.Dense(1)]
    )
    mixed = mp.convert(model, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras lists what it cannot quantize
        mixed.quantize("float8")
    assert mixed.layers[0].quantization_mode == "float8"
    assert mixed.layers[1].dtype_policy.name == policy
    assert np.isfinite(mixed(np.ones((1, 4)))).all()


@kinds(71, "policy", "mixed_float16", "mixed_bfloat16")
def test_ctc_is_finite(policy):
    model = keras.Sequential([keras.Input((5, 3)), L.Dense(4)])
    mixed = mp.convert(model, policy)
    x = np.random.default_rng(0).normal(size=(1, 5, 3)).astype("float32")
    labels = np.array([[1, 2]])
    loss = float(keras.losses.CTC()(labels, mixed(x)))
    expected = float(keras.losses.CTC()(labels, model(x)))
    assert loss == pytest.approx(expected, rel=2e-2)


@kinds(73, "way", "rule", "bfloat16")
def test_the_gradient_of_a_large_convolution(way):
    """float16 is summed in float16 there; a rule keeps such a layer away."""
    model = keras.Sequential(
        [
            keras.Input((256, 256, 1)),
            L.Conv2D(
                1, 1, use_bias=False, kernel_initializer="ones", name="conv"
            ),
            L.UpSampling2D(1),
        ]
    )
    policy = "mixed_bfloat16"
    if way == "rule":
        policy = mp.PrecisionRules(
            [
                mp.rules.Rule(policy="float32", path="conv"),
                *mp.rules.SAFE.rules,
            ],
            "mixed_float16",
        )
    mixed = mp.convert(model, policy)
    x = tf.ones((1, 256, 256, 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(mixed(x)) * 0.01
        loss *= 2.0**15
    (gradient,) = tape.gradient(loss, mixed.trainable_variables)
    np.testing.assert_allclose(gradient / 2.0**15, 0.01, rtol=2e-2)


@kinds(74, "policy", "mixed_float16", "mixed_bfloat16")
def test_a_gradient_penalty_trains(policy):
    """The inner gradient has no scale; the loss around it has the usual one."""
    model = keras.Sequential(
        [
            keras.Input((16,)),
            L.Dense(32, "tanh"),
            L.Dense(1, use_bias=False),  # a bias has no part in the slope
        ]
    )
    mixed = mp.convert(model, policy)
    optimizer = mp.wrap(keras.optimizers.SGD(1e-2))
    optimizer.build(mixed.trainable_variables)
    x = tf.random.stateless_normal((64, 16), [1, 2])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(mixed(x))
            slope = tf.cast(inner.gradient(y, x), "float32")
            penalty = tf.reduce_mean((tf.norm(slope, axis=1) - 1) ** 2)
            scaled = optimizer.scale_loss(penalty)
        optimizer.apply(tape.gradient(scaled, mixed.trainable_variables))
        return penalty

    penalties = [float(step()) for _ in range(40)]
    assert float(optimizer.loss_scale) >= 2**10
    assert penalties[-1] < penalties[0]


@kinds(76, "way", "bfloat16", "rule")
def test_inputs_above_the_largest_float16(way):
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(1, kernel_initializer="zeros", name="first"),
            L.Dense(1),
        ]
    )
    policy = "mixed_bfloat16"
    if way == "rule":
        policy = mp.PrecisionRules(
            [mp.rules.Rule(policy="float32", path="first")], "mixed_float16"
        )
    mixed = mp.convert(model, policy)
    assert mixed(np.array([[70000.0]])).numpy() == 0.0
