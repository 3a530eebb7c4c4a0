"""Train with a loop of your own: scale the loss, apply the gradients.

Run:
    python examples/02_custom_loop.py

The last line is like:
    loss 0.014, loss scale 1048576, 8 skipped steps
"""

import argparse
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

EXAMPLES = 1024  # rows of synthetic data
FEATURES = 8  # columns
BATCH_SIZE = 64  # rows a step
GROWTH_INTERVAL = 20  # good steps until the loss scale doubles; 2000 in earnest


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs of shape (n, 8) and the targets to learn, (n, 1)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    return x, y


def make_model() -> keras.Model:
    """Returns a network that computes in float16, with a float32 head."""
    hidden = {"activation": "relu", "dtype": "mixed_float16"}
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def make_train_step(
    model: keras.Model, optimizer: mp.LossScaleOptimizer
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a compiled function from a batch to its loss."""
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, variables)
        # Unscales; skips the step and lowers the scale on inf or nan.
        optimizer.apply(gradients, variables)
        return loss

    return train_step


def main(argv: list[str] | None = None) -> None:
    """Trains and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(0)
    model = make_model()
    optimizer = mp.wrap(
        keras.optimizers.Adam(3e-3), growth_interval=GROWTH_INTERVAL
    )
    train_step = make_train_step(model, optimizer)
    batches = tf.data.Dataset.from_tensor_slices(make_data())
    batches = batches.shuffle(EXAMPLES, seed=0).batch(BATCH_SIZE)
    for epoch in range(arguments.epochs):
        losses = [train_step(x, y) for x, y in batches]
        # The device is asked here, once an epoch.
        loss = float(tf.reduce_mean(losses))
        print(f"epoch {epoch + 1}: loss {loss:.3f}")
    print(
        f"loss {loss:.3f}, loss scale {float(optimizer.loss_scale):.0f}, "
        f"{int(optimizer.skipped_steps)} skipped steps"
    )


if __name__ == "__main__":
    main()
