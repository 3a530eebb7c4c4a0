"""Faults of stock Keras that a `TrainStep` does not have."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_mixprec as mp


def sums(rows=32):
    x = np.random.default_rng(0).random((rows, 4), "float32")
    return x, x.sum(1, keepdims=True)


def test_26_a_custom_loop_in_float16():
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "relu"),
            layers.Dense(1, dtype="float32"),
        ]
    )
    step = mp.TrainStep(model, keras.optimizers.SGD(0.1), "mse")
    x, y = sums()
    losses = [float(step(x, y)["loss"]) for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]
    assert float(step.optimizer.loss_scale) == 2.0**15


@pytest.mark.parametrize(
    ("policy", "scales"),
    [("mixed_float16", True), ("float16", True), ("mixed_bfloat16", False)],
)
def test_33_one_float16_layer_is_enough(policy, scales):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, dtype=policy),
            layers.Dense(1, dtype="float32"),
        ]
    )
    step = mp.TrainStep(model, "sgd", "mse")
    assert step.optimizer.dynamic == scales
    assert (float(step(*sums())["loss_scale"]) > 1) == scales


def test_49_a_loss_of_ones_own_gets_float32():
    seen = []

    def dice(y, p):
        seen.append(p.dtype.name)
        both = tf.reduce_sum(y * p)
        return 1 - (2 * both + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)

    keras.config.set_dtype_policy("mixed_float16")
    convolution = layers.Conv2D(1, 1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((300, 300, 1)), convolution])
    x = np.ones((1, 300, 300, 1), "float32")
    step = mp.TrainStep(model, "sgd", dice)
    assert abs(float(step(x, x)["loss"])) < 1e-5  # NaN in float16

    class Step(mp.TrainStep):
        def compute_loss(self, model, batch):
            x, y = batch
            return dice(y, model(x))

    model = keras.models.clone_model(model)
    assert abs(float(Step(model, "sgd")(x, x)["loss"])) < 1e-5
    assert set(seen) == {"float32"}


@pytest.mark.parametrize(
    ("metric", "loss", "y"),
    [
        (
            "sparse_top_k_categorical_accuracy",
            "sparse_categorical_crossentropy",
            np.array([1, 2]),
        ),
        (
            "top_k_categorical_accuracy",
            "categorical_crossentropy",
            np.eye(10)[[1, 2]],
        ),
        ("auc", "mse", np.eye(10)[[1, 2]]),
    ],
)
def test_70_metrics_that_know_float32_only(metric, loss, y):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(10)])
    step = mp.TrainStep(model, "sgd", loss, metrics=[metric])
    logs = step(np.ones((2, 3)), y)
    (value,) = (v for k, v in logs.items() if k in (metric, "auc"))
    assert 0 <= float(value) <= 1


class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x) * 2.0)
        return x


@pytest.mark.parametrize(
    "make",
    [
        AddsLoss,
        lambda: layers.Dense(2, activity_regularizer="l2"),
        lambda: layers.ActivityRegularization(l2=0.1),
    ],
)
def test_77_losses_of_float16_layers(make):
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((3,))
    head = layers.Dense(1, dtype="float32")
    model = keras.Model(inputs, head(make()(layers.Dense(2)(inputs))))
    step = mp.TrainStep(model, "sgd", "mse", accumulation_steps=2)
    logs = step(np.ones((2, 3)), np.zeros((2, 1)))
    assert np.isfinite(logs["loss"])
    assert not bool(logs["skipped"])
