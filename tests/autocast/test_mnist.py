"""Real digits, in a loop of raw TensorFlow without a Keras layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.cli import mnist

BATCH, EPOCHS, WIDTH = 100, 5, 64


class Network(tf.Module):
    """Two hidden layers and a head."""

    def __init__(self, seed):
        super().__init__()
        random = np.random.default_rng(seed)

        def weight(rows, columns):
            value = random.normal(size=(rows, columns)) * (2 / rows) ** 0.5
            return tf.Variable(value.astype("float32"))

        self.first = weight(28 * 28, WIDTH)
        self.first_bias = tf.Variable(tf.zeros(WIDTH))
        self.second = weight(WIDTH, WIDTH)
        self.second_bias = tf.Variable(tf.zeros(WIDTH))
        self.head = weight(WIDTH, 10)

    def __call__(self, x):
        x = tf.reshape(x, (-1, 28 * 28))
        x = tf.nn.relu(tf.matmul(x, self.first) + self.first_bias)
        x = tf.nn.relu(tf.matmul(x, self.second) + self.second_bias)
        return tf.matmul(x, self.head)


def make_loss(network, dtype):
    @mp.autocast(dtype=dtype)
    def loss(x, y):
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))
        )

    return loss


@pytest.fixture(scope="module")
def digits():
    return mnist.load()


def accuracy(dtype, seed, digits, epochs=EPOCHS):
    """Of the test digits, after training."""
    (x, y), (x_test, y_test) = digits
    network = Network(seed)
    loss_of = make_loss(network, dtype)
    variables = network.trainable_variables
    optimizer = mp.wrap(keras.optimizers.Adam(3e-3))
    optimizer.build(variables)

    @tf.function(jit_compile=True)  # float16 is slow on CPUs otherwise
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(x, y))
        optimizer.apply(tape.gradient(loss, variables), variables)

    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = random.permutation(len(x))
        for rows in order.reshape(-1, BATCH):
            step(tf.constant(x[rows]), tf.constant(y[rows]))
    predicted = tf.argmax(network(x_test), 1)
    return float(np.mean(predicted == y_test))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_accuracy_of_float32_over_five_seeds(dtype, digits):
    seeds = range(5)
    expected = [accuracy("float32", seed, digits) for seed in seeds]
    found = [accuracy(dtype, seed, digits) for seed in seeds]
    # Both within the spread of seeds, which is about 0.005.
    assert np.mean(expected) > 0.91
    assert abs(np.mean(found) - np.mean(expected)) < 0.005


def test_one_epoch_learns(digits):
    assert accuracy("bfloat16", 0, digits, epochs=1) > 0.8


def test_float16_gradients_underflow_without_the_scale(digits):
    (x, y), _ = digits
    x, y = tf.constant(x[:BATCH]), tf.constant(y[:BATCH])
    network = Network(0)
    network.head.assign(network.head * 1e-4)  # small gradients before it

    def zeros(dtype, scale):
        """How many gradients are 0, of those that are not in float64."""
        with tf.GradientTape() as tape:
            loss = make_loss(network, dtype)(x, y) * scale
        gradients = tape.gradient(loss, [network.first, network.second])
        return np.concatenate([np.ravel(g) == 0 for g in gradients])

    exact = zeros("float32", 1.0)
    lost = zeros("float16", 1.0) & ~exact
    kept = zeros("float16", 2.0**15) & ~exact
    assert lost.mean() > 0.05
    assert kept.mean() < 0.1 * lost.mean()
