"""Train with `fit` in mixed_float16: wrap the optimizer, nothing else.

Run:
    python examples/01_mixed_float16_fit.py

The last line is like:
    loss 0.014, loss scale 1048576, 8 skipped steps
"""

import argparse

import keras
import numpy as np

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


def main(argv: list[str] | None = None) -> None:
    """Trains and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(0)
    x, y = make_data()
    model = make_model()
    optimizer = mp.wrap(
        keras.optimizers.Adam(3e-3), growth_interval=GROWTH_INTERVAL
    )
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=arguments.epochs,
        verbose=2,
        callbacks=[mp.callbacks.LossScaleLogger()],
    )
    print(
        f"loss {history.history['loss'][-1]:.3f}, "
        f"loss scale {history.history['loss_scale'][-1]:.0f}, "
        f"{history.history['skipped_steps'][-1]} skipped steps"
    )


if __name__ == "__main__":
    main()
