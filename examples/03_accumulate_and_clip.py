"""Large batches in parts, clipped gradients, and a warm-up.

Run:
    python examples/03_accumulate_and_clip.py

A batch of 256 examples is cut into 4 micro-batches within the step. The
gradient is that of the whole batch, and is clipped as a whole.

The last line is like:
    loss 0.014, loss scale 1048576, 8 skipped steps
"""

import argparse

import keras
import numpy as np

import tf_mixprec as mp

EXAMPLES = 1024  # rows of synthetic data
FEATURES = 8  # columns
BATCH_SIZE = 256  # rows a step
MICRO_BATCHES = 4  # parts of a batch
GROWTH_INTERVAL = 10  # good steps until the loss scale doubles; 2000 in earnest


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


def main(argv: list[str] | None = None) -> None:
    """Trains and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(0)
    x, y = make_data()
    # Counts good steps only: overflows at the start do not use it up.
    learning_rate = mp.schedules.Warmup(1e-2, steps=5)
    optimizer = mp.wrap(
        keras.optimizers.Adam(learning_rate), growth_interval=GROWTH_INTERVAL
    )
    step = mp.TrainStep(
        make_model(),
        optimizer,
        "mse",
        accumulation_steps=MICRO_BATCHES,
        clip_global_norm=1.0,
    )
    skipped = 0
    for epoch in range(arguments.epochs):
        step.reset_metrics()
        order = np.random.default_rng(epoch).permutation(EXAMPLES)
        for rows in order.reshape(-1, BATCH_SIZE):
            step(x[rows], y[rows])
        logs = step.epoch_logs()  # the device is asked here, once an epoch
        skipped += logs["skipped"]
        print(
            f"epoch {epoch + 1}: loss {logs['loss']:.3f}, "
            f"gradient norm {logs['grad_norm']:.2f}"
        )
    print(
        f"loss {logs['loss']:.3f}, loss scale {logs['loss_scale']:.0f}, "
        f"{skipped} skipped steps"
    )


if __name__ == "__main__":
    main()
