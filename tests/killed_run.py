"""A run that goes on from its last checkpoint, and may be killed any time.

`python tests/killed_run.py DIRECTORY RESULT STEPS` waits for a line of input,
since to import TensorFlow is what takes the time. It prints a line when it
begins, and before and after each save; at the end it writes all variables to
`RESULT`.
"""

import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.training.checkpoint import Checkpoint

EPOCH = 7  # steps
SAVE_EVERY = 2  # steps


def make_step() -> mp.TrainStep:
    """Returns a step with random masks, moving statistics and a loss scale."""
    keras.utils.set_random_seed(0)
    with mp.policy_scope("mixed_float16"):
        layers = [
            keras.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(2, dtype="float32"),
        ]
    optimizer = mp.wrap(keras.optimizers.Adam(0.01), growth_interval=5)
    return mp.TrainStep(
        keras.Sequential(layers),
        optimizer,
        "mse",
        metrics=["mae"],
        jit_compile=False,
    )


def make_data(steps: int) -> tf.data.Dataset:
    """Returns numbered batches in random order, some with inf in them."""
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    y = x[:, :2].copy()
    x[5] = np.inf
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=0)
    return batches.batch(8).repeat().enumerate().take(steps)


def variables_of(step: mp.TrainStep) -> list[np.ndarray]:
    """Returns the values of all variables after a step."""
    model = step.model
    return [
        variable.numpy()
        for variable in [
            *model.variables,
            *step.optimizer.variables,
            *model.metrics_variables,
            *step._totals.variables,
        ]
    ]


def run(
    directory: str | pathlib.Path,
    steps: int,
    tell: Callable[[str], None] = lambda line: None,
) -> list[np.ndarray]:
    """Trains to the end, and returns the values of all variables."""
    step = make_step()
    data = iter(make_data(steps))
    checkpoint = Checkpoint(step, directory, data=data)
    tell("begins")
    checkpoint.restore()
    for index, (x, y) in data:
        if index % EPOCH == 0:
            step.reset_metrics()
        step(x, y)
        if (index + 1) % SAVE_EVERY == 0:
            tell("saving")
            checkpoint.save()
            tell("saved")
    return variables_of(step)


def say(line: str) -> None:
    """Prints a line at once, for who is waiting for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    directory_, result, steps_ = sys.argv[1:]
    sys.stdin.readline()
    np.savez(result, *run(directory_, int(steps_), say))
