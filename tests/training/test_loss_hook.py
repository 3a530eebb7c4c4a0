"""Losses that users compute: one, several, of several models, second order."""

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp


def dense(units=1, policy="float32", features=4, **options):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((features,)),
            layers.Dense(units, dtype=policy, **options),
        ]
    )


def data(count=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


class MeanSquare(mp.TrainStep):
    """What `loss="mse"` is, with a scalar beside it."""

    def compute_loss(self, model, batch, training=True):
        x, y = batch
        error = model(x, training=training) - y
        return tf.reduce_mean(error**2), {"mae": tf.reduce_mean(abs(error))}


@pytest.mark.parametrize(
    ("strategy_name", "accumulation_steps"),
    [
        ("none", 2),
        pytest.param("mirrored_2", 1, marks=pytest.mark.slow),
        pytest.param("mirrored_2", 2, marks=pytest.mark.slow),
    ],
)
def test_a_hook_equals_the_loss_of_keras(strategy_name, accumulation_steps):
    x, y = data(16)
    results = []
    for kind, arguments in (
        (MeanSquare, {}),
        (mp.TrainStep, {"loss": "mse", "metrics": ["mae"]}),
    ):
        with strategies.make(strategy_name).scope():
            step = kind(
                dense(),
                "adam",
                accumulation_steps=accumulation_steps,
                jit_compile=False,
                **arguments,
            )
        history = mp.fit(
            step, (x, y), epochs=2, batch_size=8, shuffle=False, verbose=0
        ).history
        results.append((history, step.evaluate((x, y), batch_size=8), step))
    (history, result, step), (expected, expected_result, other) = results
    for key in ("loss", "mae", "grad_norm"):
        np.testing.assert_allclose(history[key], expected[key], rtol=1e-6)
    for key in ("loss", "mae"):
        np.testing.assert_allclose(result[key], expected_result[key], rtol=1e-6)
    np.testing.assert_allclose(
        step.model.get_weights()[0], other.model.get_weights()[0], rtol=1e-6
    )


def test_evaluate_is_without_training():
    class Step(mp.TrainStep):
        def compute_loss(self, model, batch, training=True):
            x, y = batch
            return tf.reduce_mean((model(x, training=training) - y) ** 2)

    model = keras.Sequential(
        [keras.Input((4,)), layers.Dropout(0.5), layers.Dense(1)]
    )
    x, y = data()
    step = Step(model, "sgd")
    expected = np.mean((model.predict(x, verbose=0) - y) ** 2)
    np.testing.assert_allclose(
        step.evaluate((x, y))["loss"], expected, rtol=1e-6
    )


def batch_normalized():
    return keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)]
    )


def test_a_model_is_called_in_the_mode_of_the_step():
    """Where the method does not say which: statistics move, and then do not."""

    class Step(mp.TrainStep):
        def compute_loss(self, model, batch):
            x, y = batch
            return tf.reduce_mean((model(x) - y) ** 2)

    x, y = data()
    step = Step(batch_normalized(), keras.optimizers.SGD(0.0))
    norm = step.model.layers[0]
    step(x, y)
    moved = norm.moving_mean.numpy()
    assert moved.any()
    expected = np.mean((step.predict(x) - y) ** 2)
    np.testing.assert_allclose(
        step.evaluate((x, y))["loss"], expected, rtol=1e-6
    )
    np.testing.assert_array_equal(norm.moving_mean.numpy(), moved)


def test_evaluate_changes_no_statistic():
    class Step(mp.TrainStep):
        def compute_loss(self, model, batch):
            x, y = batch
            return tf.reduce_mean((model(x, training=True) - y) ** 2)

    x, y = data()
    step = Step(batch_normalized(), "sgd")
    losses = {step.evaluate((x, y))["loss"] for _ in range(2)}
    assert len(losses) == 1
    assert not step.model.layers[0].moving_mean.numpy().any()


def test_a_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(1)])
    x, y = data()
    step = MeanSquare(model, "sgd")
    losses = [float(step(x, y)["loss"]) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_float16_gradients_that_would_vanish():
    """A loss of 1e-8: without a scale every gradient is 0 (fault 27)."""

    class Small(mp.TrainStep):
        def compute_loss(self, model, batch):
            outputs = tf.cast(model(batch, training=True), tf.float32)
            return tf.reduce_sum(outputs) * 1e-8

    policy = "mixed_float16"
    model = dense(policy=policy, features=3, use_bias=False)
    before = model.get_weights()[0]
    step = Small(model, keras.optimizers.SGD(1.0))
    logs = step(np.ones((2, 3)))
    moved = before - model.get_weights()[0]
    np.testing.assert_allclose(moved, 2e-8, atol=3e-8)
    np.testing.assert_allclose(logs["grad_norm"], 2e-8 * np.sqrt(3), rtol=1e-3)


class TwoLosses(mp.TrainStep):
    """Of which one has gradients 2**20 times those of the other."""

    def compute_loss(self, model, batch):
        x, y = batch
        error = model(x, training=True) - y
        small = tf.reduce_mean(error) * 2.0**-10
        return {"large": tf.reduce_mean(error**2) * 2.0**10, "small": small}


@pytest.mark.parametrize(
    ("strategy_name", "accumulation_steps", "jit_compile"),
    [
        ("none", 1, False),
        ("one_device", 2, True),
        ("mirrored_2", 2, False),
        pytest.param("none", 2, False, marks=pytest.mark.slow),
        pytest.param("one_device", 1, True, marks=pytest.mark.slow),
        pytest.param("mirrored_2", 1, False, marks=pytest.mark.slow),
    ],
)
def test_each_loss_has_a_scale(strategy_name, accumulation_steps, jit_compile):
    """The gradient is that of the sum; only one scale backs off."""
    x, y = data()
    rule = mp.DynamicLossScale(initial_scale=2.0**15, growth_interval=2)
    with strategies.make(strategy_name).scope():
        step = TwoLosses(
            dense(policy="mixed_float16"),
            keras.optimizers.SGD(2.0**-14),
            loss_scales={"large": rule, "small": rule},
            accumulation_steps=accumulation_steps,
            jit_compile=jit_compile,
        )
    kernel = step.model.get_weights()[0]
    logs = step(x, y)
    while bool(logs["skipped"]):
        np.testing.assert_array_equal(step.model.get_weights()[0], kernel)
        logs = step(x, y)
    assert float(logs["loss_scale/large"]) < 2.0**15
    assert float(logs["loss_scale/small"]) > 2.0**15
    assert float(logs["loss_scale"]) == 1.0
    error = x.astype("float64") @ kernel - y
    gradient = 2**10 * 2 * x.T @ error / 8 + x.sum(0)[:, None] * 2**-10 / 8
    moved = (kernel - step.model.get_weights()[0]) * 2**14
    if accumulation_steps == 1:  # else some micro-batches are left out
        np.testing.assert_allclose(
            moved, gradient, rtol=3e-3, atol=np.abs(gradient).max() * 2e-3
        )
    for name in ("large", "small"):
        assert float(logs[name]) != 0


def test_a_shared_scale_moves_once_a_round():
    """As torch: each optimizer skips by itself, one update for all."""
    shared = mp.SharedLossScale(initial_scale=8.0, growth_interval=2)
    x, y = data()
    first, second = (
        mp.TrainStep(dense(), shared.wrap("sgd"), "mse") for _ in range(2)
    )
    rounds = [(x, x), (x * np.nan, x), (x, x), (x, x), (x, x * np.nan)]
    scales, skipped = [], []
    for a, b in rounds:
        skipped.append(
            tuple(
                bool(s(i, y)["skipped"]) for s, i in ((first, a), (second, b))
            )
        )
        shared.update()
        scales.append(float(shared.loss_scale))
    assert scales == [8.0, 4.0, 4.0, 8.0, 4.0]
    assert skipped == [(i[0] is not x, i[1] is not x) for i in rounds]
    for step in (first, second):
        assert float(step.optimizer.loss_scale) == 4.0
        assert int(step.optimizer.skipped_steps) == 1
        assert int(step.optimizer.iterations) == 4
    shared.update()  # a round without steps
    assert int(shared.state.skipped_steps) == 2
    assert int(shared.state.good_steps) == 0


@pytest.mark.parametrize(
    ("strategy_name", "options"),
    [
        ("one_device", {"jit_compile": True}),
        ("mirrored_2", {}),
        pytest.param(
            "mirrored_2", {"jit_compile": True}, marks=pytest.mark.slow
        ),
        pytest.param("one_device", {}, marks=pytest.mark.slow),
    ],
)
def test_a_shared_scale_in_a_loop(strategy_name, options):
    """With `update` traced, in replicas too, and a compiled optimizer."""
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        shared = mp.SharedLossScale(initial_scale=8.0)
        optimizers = [shared.wrap("sgd", **options) for _ in range(2)]
        weights = [keras.Variable(np.ones(3, "float32")) for _ in range(2)]
        for optimizer, weight in zip(optimizers, weights, strict=True):
            optimizer.build([weight])

    @tf.function
    def one_round(a, b):
        def on_replica(a, b):
            for optimizer, weight, gradient in zip(
                optimizers, weights, (a, b), strict=True
            ):
                optimizer.scale_loss(0.0)
                optimizer.apply([gradient], [weight])
            shared.update()

        strategy.run(on_replica, args=(a, b))

    good, bad = tf.ones(3), tf.constant([1.0, np.inf, 1.0])
    for *given, expected in ((good, good, 8.0), (bad, good, 4.0)):
        one_round(*(strategies.per_replica(strategy, [g, g]) for g in given))
        assert strategies.one_value(strategy, shared.loss_scale) == expected
        for optimizer in optimizers:
            value = strategies.one_value(strategy, optimizer.loss_scale)
            assert value == expected


def test_a_shared_scale_is_not_in_a_file():
    shared = mp.SharedLossScale(initial_scale=8.0)
    optimizer = shared.wrap("sgd")
    loaded = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(optimizer)
    )
    assert type(loaded) is mp.LossScaleOptimizer
    assert loaded.rule == shared.rule


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda s: s.wrap(mp.wrap("sgd")), "must not be wrapped already"),
        (lambda s: s.wrap("sgd", min_scale=2.0), "numbers of the scale"),
    ],
)
def test_wrong_use_of_a_shared_scale(make, match):
    with pytest.raises(ValueError, match=match):
        make(mp.SharedLossScale())


class Critic(mp.TrainStep):
    """A Wasserstein critic with a gradient penalty (fault 74)."""

    def compute_loss(self, model, batch):
        real, fake = batch
        middle = 0.5 * (real + fake)
        with tf.GradientTape() as tape:
            tape.watch(middle)
            # A constant, and not the loss scale: the gradient of a gradient
            # would be multiplied by it twice.
            output = tf.reduce_sum(model(middle, training=True)) * 64.0
        gradient = tf.cast(tape.gradient(output, middle), tf.float32) / 64.0
        norm = tf.sqrt(tf.reduce_sum(gradient**2, axis=1) + 1e-12)
        penalty = tf.reduce_mean((norm - 1.0) ** 2)
        distance = tf.reduce_mean(model(fake, training=True)) - tf.reduce_mean(
            model(real, training=True)
        )
        return distance + 10.0 * penalty, {"penalty": penalty}


def critic(policy):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        return keras.Sequential(
            [
                keras.Input((16,)),
                layers.Dense(32, "tanh"),
                layers.Dense(1, dtype="float32"),
            ]
        )


def test_gradient_penalty():
    """float16 follows float32, and the scale stays where it was."""
    rng = np.random.default_rng(0)
    real = rng.normal(size=(64, 16)).astype("float32")
    fake = rng.normal(1.0, size=(64, 16)).astype("float32")
    penalties = {}
    for policy in ("float32", "mixed_float16"):
        step = Critic(critic(policy), keras.optimizers.Adam(1e-2))
        logs = [step(real, fake) for _ in range(30)]
        penalties[policy] = [float(each["penalty"]) for each in logs]
    np.testing.assert_allclose(
        penalties["mixed_float16"], penalties["float32"], rtol=0.1, atol=0.02
    )
    assert penalties["mixed_float16"][-1] < penalties["mixed_float16"][0]
    assert float(step.optimizer.loss_scale) >= 2.0**10


def test_the_gradient_of_a_gradient_is_that_of_float64():
    """The penalty of a linear critic, by hand."""
    model = dense(features=16, use_bias=False)
    (kernel,) = model.get_weights()

    class Penalty(mp.TrainStep):
        def compute_loss(self, model, batch):
            with tf.GradientTape() as tape:
                tape.watch(batch)
                output = tf.reduce_sum(model(batch))
            gradient = tape.gradient(output, batch)
            norm = tf.sqrt(tf.reduce_sum(gradient**2, axis=1))
            return tf.reduce_mean((norm - 1.0) ** 2)

    step = Penalty(model, mp.wrap(keras.optimizers.SGD(0.5)))
    step(tf.ones((4, 16)))
    wide = kernel.astype("float64")
    norm = np.linalg.norm(wide)
    expected = wide - 0.5 * 2 * (norm - 1) * wide / norm
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5)
