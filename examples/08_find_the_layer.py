"""A layer overflows in float16: a callback names it, and a rule mends it.

Run:
    python examples/08_find_the_layer.py

The last line is like:
    loss 0.098, loss scale 8192, 2 skipped steps
"""

import argparse
import warnings

import keras
import numpy as np
from keras import ops

import tf_mixprec as mp

EXAMPLES = 2048  # rows of synthetic data
FEATURES = 32  # columns, with values of about 5
BATCH_SIZE = 32  # rows a step


@keras.saving.register_keras_serializable("examples")
class SmoothMaximum(keras.layers.Layer):
    """Returns log(exp(x1) + exp(x2) + ...), a little above the largest."""

    def call(self, x):
        """Returns one number for each row."""
        # exp(11.1) is 66,000, and float16 ends at 65,504.
        return ops.log(ops.sum(ops.exp(x), axis=-1, keepdims=True))


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (n, 32), and targets (n, 1)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)) * 5
    y = x.max(axis=1, keepdims=True) / 5
    return x.astype("float32"), y.astype("float32")


def make_model() -> keras.Model:
    """Returns a small network with a layer of its own."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(32, name="hidden"),
            SmoothMaximum(name="smooth_maximum"),
            keras.layers.Dense(1, name="head"),
        ]
    )


def train(
    rules: mp.PrecisionRules, epochs: int
) -> mp.callbacks.NumericsMonitor:
    """Trains in the precision that rules say, and prints how it went.

    Args:
        rules: Which layer has which policy.
        epochs: How often all rows are seen.
    """
    keras.utils.set_random_seed(0)
    model = mp.convert(make_model(), rules)
    mp.compile(model, keras.optimizers.Adam(3e-2), "mse", safe_skip=True)
    monitor = mp.callbacks.NumericsMonitor()
    x, y = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # printed below
        history = model.fit(
            x, y, BATCH_SIZE, epochs, verbose=0, callbacks=[monitor]
        ).history
    print(
        f"loss {history['loss'][-1]:.3f}, "
        f"loss scale {float(model.optimizer.loss_scale):.0f}, "
        f"{int(model.optimizer.skipped_steps)} skipped steps"
    )
    return monitor


def main(argv: list[str] | None = None) -> None:
    """Trains as the policy says, and then with one layer in float32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args(argv)

    rules = mp.rules.SAFE.with_policy("mixed_float16")
    event = train(rules, arguments.epochs).events[0]
    print(f"\n{event}\n")
    layer = event.culprit.layer
    exception = mp.rules.Rule(policy="float32", path=layer)
    mended = mp.PrecisionRules([exception, *rules.rules], "mixed_float16")
    train(mended, arguments.epochs)


if __name__ == "__main__":
    main()
