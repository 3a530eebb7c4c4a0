"""Attention written in raw TensorFlow, its operations in 16 bits.

Run:
    python examples/07_autocast_raw_tensorflow.py
    python examples/07_autocast_raw_tensorflow.py --dtype float16 --report

There is no Keras layer and no dtype policy: `mp.autocast` rewrites what the
function traces. Variables and their gradients stay float32.

The last line is like:
    loss 0.143, accuracy 0.95, loss scale 65536, 0 skipped steps
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

EXAMPLES = 4096  # sequences of synthetic data
STEPS = 8  # vectors in a sequence
FEATURES = 16  # numbers in a vector
BATCH_SIZE = 64  # sequences a step
WIDTH = 64  # of the hidden layers


def make_data() -> tf.data.Dataset:
    """Returns batches of sequences (n, 8, 16) and labels (n,), 0 or 1.

    The label is whether the second number is positive in that vector whose
    first number is the largest.
    """
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, STEPS, FEATURES)).astype("float32")
    largest = x[:, :, 0].argmax(1)
    y = (x[np.arange(EXAMPLES), largest, 1] > 0).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return rows.shuffle(EXAMPLES, seed=0).batch(BATCH_SIZE, True)


class Attention(tf.Module):
    """One attention over the vectors of a sequence, and a small head."""

    def __init__(self):
        super().__init__()
        random = np.random.default_rng(1)

        def weight(rows: int, columns: int) -> tf.Variable:
            value = random.normal(size=(rows, columns)) / np.sqrt(rows)
            return tf.Variable(value.astype("float32"))

        self.keys = weight(FEATURES, WIDTH)
        self.scores = weight(WIDTH, 1)
        self.values = weight(FEATURES, WIDTH)
        self.hidden = weight(WIDTH, WIDTH)
        self.bias = tf.Variable(tf.zeros(WIDTH))
        self.head = weight(WIDTH, 1)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits (n,)."""
        keys = tf.nn.relu(tf.matmul(x, self.keys))  # in 16 bits
        scores = tf.nn.softmax(tf.matmul(keys, self.scores), 1)  # in float32
        mixed = tf.einsum("bto,btf->bf", scores, tf.matmul(x, self.values))
        hidden = tf.nn.relu(tf.matmul(mixed, self.hidden) + self.bias)
        return tf.matmul(hidden, self.head)[:, 0]


def main(argv: list[str] | None = None) -> None:
    """Trains, and prints the loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), default="float16"
    )
    parser.add_argument(
        "--report", action="store_true", help="say what runs in which dtype"
    )
    arguments = parser.parse_args(argv)

    network = Attention()
    variables = network.trainable_variables

    @mp.autocast(dtype=arguments.dtype)
    def loss_and_logits(x, y):
        logits = network(x)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(y, logits)
        return tf.reduce_mean(losses), logits

    optimizer = mp.wrap(keras.optimizers.Adam(3e-3), initial_scale=2.0**16)
    optimizer.build(variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss, logits = loss_and_logits(x, y)
            # float16 loses gradients below 6e-8 without it.
            scaled_loss = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled_loss, variables), variables)
        right = tf.equal(logits > 0, y > 0.5)
        return loss, tf.reduce_mean(tf.cast(right, tf.float32))

    data = make_data()
    if arguments.report:
        print(mp.autocast_report(loss_and_logits, *next(iter(data))))
    for _ in range(arguments.epochs):
        results = [train_step(x, y) for x, y in data]
        loss, accuracy = (
            float(tf.reduce_mean(e)) for e in zip(*results, strict=True)
        )
    print(
        f"loss {loss:.3f}, accuracy {accuracy:.2f}, "
        f"loss scale {float(optimizer.loss_scale):.0f}, "
        f"{int(optimizer.skipped_steps)} skipped steps"
    )


if __name__ == "__main__":
    main()
