"""A GAN: two models, two optimizers, one loss scale.

Run:
    python examples/04_gan_two_optimizers.py

Each `TrainStep` updates one model; the other one is part of its loss. The two
share a loss scale, which moves once a round: if either step overflows, both
are scaled less. The data are points on a circle, and the last line says how far
from it the generated ones are.

The last line is like:
    loss 0.074, loss scale 262144, 4 skipped steps
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

NOISE = 4  # numbers that a point is generated from
BATCH_SIZE = 64  # points a step
ROUNDS = 100  # steps of each model in an epoch
RATE = 5e-3  # learning rate of both
GROWTH_INTERVAL = 50  # good rounds until the scale doubles; 2000 in earnest
SMOOTHING = 0.1  # what a real point lacks to be called real


def make_network(inputs: int, outputs: int) -> keras.Model:
    """Returns a network that computes in float16, with a float32 head."""
    hidden = {"activation": "leaky_relu", "dtype": "mixed_float16"}
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(outputs, dtype="float32"),
        ]
    )


def is_real(logits: tf.Tensor, target: float) -> tf.Tensor:
    """Returns the mean cross entropy of logits with one target."""
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(
            tf.fill(tf.shape(logits), target), logits
        )
    )


class DiscriminatorStep(mp.TrainStep):
    """Tells real points from generated ones."""

    def compute_loss(self, model, batch):
        """Returns the loss; `batch` is real and generated points."""
        real, generated = batch
        return is_real(model(real), 1.0 - SMOOTHING) + is_real(
            model(generated), 0.0
        )


class GeneratorStep(mp.TrainStep):
    """Generates points that the discriminator takes for real."""

    def __init__(self, model, optimizer, discriminator):
        self.discriminator = discriminator
        super().__init__(model, optimizer)

    def compute_loss(self, model, batch):
        """Returns the loss; `batch` is noise."""
        points = model(batch)  # with `training=True`, as in any step
        # What is returned is logged: how far the points are from the circle.
        distance = tf.reduce_mean(tf.abs(tf.norm(points, axis=1) - 1.0))
        return is_real(self.discriminator(points), 1.0), {"distance": distance}


def main(argv: list[str] | None = None) -> None:
    """Trains and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    shared = mp.SharedLossScale(growth_interval=GROWTH_INTERVAL)
    generator = make_network(NOISE, 2)
    discriminator = make_network(2, 1)
    judge = DiscriminatorStep(
        discriminator, shared.wrap(keras.optimizers.Adam(RATE, beta_1=0.5))
    )
    forge = GeneratorStep(
        generator,
        shared.wrap(keras.optimizers.Adam(RATE, beta_1=0.5)),
        discriminator,
    )
    for epoch in range(arguments.epochs):
        forge.reset_metrics()
        for _ in range(ROUNDS):
            angle = random.uniform(0, 2 * np.pi, BATCH_SIZE)
            real = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            noise = random.normal(size=(2, BATCH_SIZE, NOISE)).astype("float32")
            judge(real, generator(noise[0]))
            forge(noise[1])
            shared.update()
        distance = forge.epoch_logs()["distance"]
        print(f"epoch {epoch + 1}: {distance:.3f} from the circle")
    print(
        f"loss {distance:.3f}, loss scale {float(shared.loss_scale):.0f}, "
        f"{int(shared.state.skipped_steps)} skipped steps"
    )


if __name__ == "__main__":
    main()
