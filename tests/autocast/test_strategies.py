"""Autocast on several replicas, in a loop of one's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from strategies import mirrored

import tf_mixprec as mp

ROWS, FEATURES = 16, 8


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, FEATURES)).astype("float32")
    return x, x.sum(1, keepdims=True)


def trained(strategy, wrap, steps=3, jit_compile=False):
    """Returns weights and losses after some steps of raw TensorFlow."""
    random = np.random.default_rng(1)
    shapes = ((FEATURES, 16), (16, 1))
    with strategy.scope():
        weights = [
            tf.Variable((random.normal(size=s) / 3).astype("float32"))
            for s in shapes
        ]
        optimizer = mp.wrap(keras.optimizers.SGD(0.05), initial_scale=256.0)
        optimizer.build(weights)

    @wrap
    def loss_of(x, y):
        h = tf.tanh(tf.matmul(x, weights[0]))
        _, h = tf.while_loop(
            lambda i, h: i < 2,
            lambda i, h: (i + 1, h * tf.sigmoid(tf.matmul(h, weights[1]))),
            (0, h),
            maximum_iterations=2,
        )
        return tf.reduce_sum((tf.matmul(h, weights[1]) - y) ** 2) / ROWS

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
            scaled_loss = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled_loss, weights), weights)
        return loss

    @tf.function(jit_compile=jit_compile)
    def step(x, y):
        return strategy.run(replica_step, (x, y))

    count = strategy.num_replicas_in_sync
    losses = []
    for _ in range(steps):
        parts = [
            strategy.experimental_distribute_values_from_function(
                lambda context, values=values: tf.constant(
                    np.split(values, count)[context.replica_id_in_sync_group]
                )
            )
            for values in data()
        ]
        results = strategy.experimental_local_results(step(*parts))
        losses.append(sum(float(each) for each in results))
    return [np.array(w) for w in weights], losses


def in_bfloat16(function):
    return mp.autocast(function, "bfloat16")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_two_replicas_are_one(dtype):
    def wrap(function):
        return mp.autocast(function, dtype)

    weights, losses = trained(mirrored(2), wrap)
    expected, of_one = trained(tf.distribute.OneDeviceStrategy("CPU:0"), wrap)
    plain, _ = trained(mirrored(2), lambda function: function)
    np.testing.assert_allclose(losses, of_one, rtol=1e-2)
    for ours, one, theirs in zip(weights, expected, plain, strict=True):
        np.testing.assert_allclose(ours, one, atol=2e-3)
        np.testing.assert_allclose(ours, theirs, atol=5e-3)
        assert (ours != theirs).any()


def test_each_replica_uses_its_own_variables():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(tf.ones((2, 2)))
    weight.values[1].assign(3.0 * tf.ones((2, 2)))
    function = in_bfloat16(lambda x: tf.matmul(x, weight))

    @tf.function
    def run(x):
        return strategy.run(function, (x,))

    for _ in range(2):
        results = strategy.experimental_local_results(run(tf.ones((2, 2))))
        assert [float(each[0, 0]) for each in results] == [2.0, 6.0]


@pytest.mark.slow
def test_compiled_on_one_device():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    weights, _ = trained(strategy, in_bfloat16, jit_compile=True)
    expected, _ = trained(strategy, in_bfloat16)
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-3)
