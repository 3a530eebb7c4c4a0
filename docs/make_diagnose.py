# ruff: noqa: T201
"""Makes the pictures of `docs/diagnose.md`, and prints what it quotes.

Run it in a checkout with `.[demo]` and `.[report]` installed:
`python docs/make_diagnose.py`. It takes a minute or two.
"""

import pathlib
import time
import warnings

import keras
from keras import ops

import tf_mixprec as mp
from tf_mixprec.cli import mnist
from tf_mixprec.reports import figures

PICTURES = pathlib.Path(__file__).parent / "diagnose"
EXAMPLES = 2048  # of 5000 digits
BATCH_SIZE = 64
EPOCHS = 3
LEARNING_RATE = 0.02


@keras.saving.register_keras_serializable("docs")
class BilinearPooling(keras.layers.Layer):
    """Sums the products of all pairs of features over all positions.

    Reference:
        - [Lin et al., 2015](https://arxiv.org/abs/1504.07889)
    """

    def call(self, x):
        """Returns (n, f**2) for (n, height, width, f)."""
        _, height, width, features = x.shape
        x = ops.reshape(x, (-1, height * width, features))
        products = ops.matmul(ops.transpose(x, (0, 2, 1)), x)
        return ops.reshape(products, (-1, features**2))


def make_model():
    """Returns three convolutions, the pooling, and a head in float32."""
    options = {"activation": "relu", "kernel_initializer": "he_normal"}
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(8, 5, 2, name="edges", **options),
            keras.layers.Conv2D(
                16, 3, padding="same", name="strokes", **options
            ),
            keras.layers.Conv2D(16, 3, padding="same", name="parts", **options),
            BilinearPooling(name="pairs"),
            keras.layers.BatchNormalization(momentum=0.9, name="normalize"),
            keras.layers.Dense(10, name="digits", dtype="float32"),
        ],
        name="pairs_of_features",
    )


def load():
    """Returns images of mean 0 and variance 1, and labels; and test data."""
    train, test = mnist.load()
    return tuple(
        ((x[:EXAMPLES] - 0.1307) / 0.3081, y[:EXAMPLES])
        for x, y in (train, test)
    )


def train(model, x, y, callbacks=(), **options):
    """Trains, and prints a line for each epoch."""
    mp.compile(
        model,
        keras.optimizers.Adam(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    logger = mp.callbacks.LossScaleLogger()
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*callbacks, logger],
    ).history
    for epoch in range(EPOCHS):
        print(
            f"epoch {epoch + 1}: "
            f"loss {history['loss'][epoch]:.3f}, "
            f"accuracy {history['accuracy'][epoch]:.3f}, "
            f"loss scale {history['loss_scale'][epoch]:g}, "
            f"{history['skipped_steps'][epoch]} skipped steps"
        )


def show(title, report):
    """Prints a report."""
    print(f"\n##### {title}\n\n{report}", flush=True)
    return report


def draw(report, title, name):
    """Writes one of the figures of a report to a file."""
    (block,) = [
        each for each in report.document().blocks if each.title == title
    ]
    figures.save_picture(block, PICTURES / f"{name}.svg")


def stuck_run(x, y):
    """Returns the model after a run that gets stuck, and its first event."""
    with mp.policy_scope("mixed_float16"):
        model = make_model()
    # A short run: samples every 10 steps, whatever they cost.
    monitor = mp.callbacks.NumericsMonitor(every=10, max_overhead=None)
    print("##### The run\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        train(model, x, y, [monitor])
    for each in caught:
        print(f"\n{each.category.__name__}: {each.message}")
    event = show("The first event", monitor.events[0])
    print(f"\n{len(monitor.events)} events")
    print(f"evaluate: {model.evaluate(x, y, verbose=0)}")
    return model, event


def main():
    """Makes the page's numbers and pictures."""
    start = time.monotonic()
    PICTURES.mkdir(exist_ok=True)
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = load()
    model, event = stuck_run(x, y)
    draw(event, "Headroom of the outputs", "event_headroom")

    show(
        "find_nonfinite", mp.find_nonfinite(model, x, y, batch_size=BATCH_SIZE)
    )
    show("diagnose", mp.diagnose(model, x, y, batch_size=BATCH_SIZE))

    rules = mp.PrecisionRules(
        [mp.rules.Rule(policy="float32", path="pairs"), *mp.rules.SAFE.rules],
        policy="mixed_float16",
    )
    show(
        "compare",
        mp.compare(
            model,
            x,
            y,
            policies=[None, rules],
            batch_size=BATCH_SIZE,
        ),
    )

    keras.utils.set_random_seed(0)
    mended, report = mp.convert(make_model(), rules, return_report=True)
    print(f"\n##### The mended run\n\n{report}\n")
    train(mended, x, y, safe_skip=True)
    print(f"evaluate: {mended.evaluate(x_test, y_test, verbose=0)}")
    diagnosis = show(
        "diagnose, mended", mp.diagnose(mended, x, y, batch_size=BATCH_SIZE)
    )
    draw(
        diagnosis, "Exponents of the gradients of the scaled loss", "exponents"
    )
    show(
        "compare, mended",
        mp.compare(mended, x, y, batch_size=BATCH_SIZE),
    )
    show(
        "tune",
        mp.tune(mended, x, y, policy="mixed_float16", batch_size=BATCH_SIZE),
    )
    print(f"\n{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
