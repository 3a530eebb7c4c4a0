"""Stop in the middle of an epoch, and go on with the same bits.

Run:
    python examples/06_resume.py

A run that was killed goes on in the same way: give the same `--directory`.

The last line is like:
    loss 0.014, loss scale 1048576, 8 skipped steps
"""

import argparse
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

EXAMPLES = 1024  # rows of synthetic data
FEATURES = 8  # columns
BATCH_SIZE = 64  # rows a step
STEPS = EXAMPLES // BATCH_SIZE  # an epoch
GROWTH_INTERVAL = 20  # good steps until the loss scale doubles; 2000 in earnest


def make_data() -> tf.data.Dataset:
    """Returns numbered batches without end: inputs (n, 8), targets (n, 1)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    # Shuffled by a seed: the position in the data is saved, the data is not.
    return rows.shuffle(EXAMPLES, seed=0).batch(BATCH_SIZE).repeat().enumerate()


def make_step() -> mp.TrainStep:
    """Returns a step of a network in float16, with a float32 head."""
    hidden = {"activation": "relu", "dtype": "mixed_float16"}
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = mp.wrap(
        keras.optimizers.Adam(3e-3), growth_interval=GROWTH_INTERVAL
    )
    return mp.TrainStep(model, optimizer, "mse", metrics=["mse"])


def run(directory: str, stop: int) -> None:
    """Trains from where the directory says to a number of steps.

    Args:
        directory: Where the checkpoints are.
        stop: In steps since the very first one.
    """
    keras.utils.set_random_seed(0)
    step = make_step()
    data = iter(make_data())
    checkpoint = mp.Checkpoint(step, directory, data=data)
    path = checkpoint.restore()
    print("a new run" if path is None else f"goes on from {path}")
    for index, (x, y) in data:  # the data knows how many steps were made
        number = int(index) + 1
        if index % STEPS == 0:
            step.reset_metrics()
        logs = step(x, y)
        if number % STEPS == 0:
            print(f"epoch {number // STEPS}: loss {float(logs['mse']):.3f}")
        if number % STEPS == 0 or number >= stop:
            checkpoint.save()
        if number >= stop:
            break
    print(
        f"loss {float(logs['mse']):.3f}, "
        f"loss scale {float(step.optimizer.loss_scale):.0f}, "
        f"{int(step.optimizer.skipped_steps)} skipped steps"
    )


def main(argv: list[str] | None = None) -> None:
    """Trains in two parts, as two processes would."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--directory", default=None, help="default: one that is deleted"
    )
    arguments = parser.parse_args(argv)

    steps = arguments.epochs * STEPS
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or temporary
        run(directory, stop=steps // 2 + STEPS // 3)
        run(directory, stop=steps)


if __name__ == "__main__":
    main()
