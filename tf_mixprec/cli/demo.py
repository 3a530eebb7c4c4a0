"""`tf-mixprec demo`: one small network, trained in every precision."""

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

import keras
import numpy as np

import tf_mixprec as mp
from tf_mixprec.cli import memory
from tf_mixprec.cli import mnist

BATCH_SIZE = 50  # images a step: 80 steps an epoch
WARM_UP_STEPS = 10  # tracing and first-touch costs, not timed
SEED = 1


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand to the command line."""
    parser = subcommands.add_parser(
        "demo",
        help="train on real images in float32 and in 16 bits, and compare",
        description="Trains a small network on 5,000 MNIST digits in float32, "
        "mixed_bfloat16 and mixed_float16, and compares them.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="leave mixed_float16 out"
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=6,
        help="passes over the data in each precision (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 1, received {text!r}"
        )
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo and returns the exit status."""
    try:
        train_data, test_data = mnist.load()
    except mnist.MissingDataError as missing:
        print(missing, file=sys.stderr)
        return 2
    policies = ["float32", "mixed_bfloat16"]
    if not arguments.quick:
        policies.append("mixed_float16")
    print(
        f"A CNN on {len(train_data[0])} MNIST digits, tested on "
        f"{len(test_data[0])} others, in {', '.join(policies)}."
    )
    runs = [Run(policy) for policy in policies]
    # Epoch by epoch in turn, so that whatever else the machine does meanwhile
    # slows all of them.
    for epoch in range(arguments.epochs):
        for each in runs:
            each.train_epoch(train_data, seed=SEED + epoch)
            print(
                f"epoch {epoch + 1}/{arguments.epochs}  {each.policy:<15} "
                f"loss {each.loss:.4f}",
                flush=True,
            )
    results = [each.result(test_data) for each in runs]
    print()
    print(table(results))
    print()
    print(summary(results))
    return 0


@dataclasses.dataclass(frozen=True)
class Result:
    """What one precision reached.

    Args:
        policy: Name of the dtype policy.
        accuracy: Fraction of the test images that are recognized.
        step_seconds: Median time of a training step, in seconds.
        peak_bytes: Peak memory of the device, in bytes, or `None`.
        loss_scale: Final loss scale, dimensionless.
        skipped_steps: Number of skipped steps.
    """

    policy: str
    accuracy: float
    step_seconds: float
    peak_bytes: int | None
    loss_scale: float
    skipped_steps: int


class Run:
    """The training of one network in one precision, an epoch at a time.

    Args:
        policy: Name of a Keras dtype policy.
    """

    def __init__(self, policy: str):
        self.policy = policy
        self.loss = float("nan")
        self._model = make_model(policy)
        self._timer = StepTimer()
        self._peak = memory.PeakMemory()

    def train_epoch(
        self, data: tuple[np.ndarray, np.ndarray], seed: int
    ) -> None:
        """Trains one pass over the data, in an order given by the seed."""
        keras.utils.set_random_seed(seed)
        with self._peak:
            history = self._model.fit(
                *data,
                batch_size=BATCH_SIZE,
                verbose=0,
                callbacks=[self._timer],
            )
        self.loss = history.history["loss"][-1]

    def result(self, data: tuple[np.ndarray, np.ndarray]) -> Result:
        """Returns what the training reached, tested on `data`."""
        _, accuracy = self._model.evaluate(*data, batch_size=500, verbose=0)
        optimizer = self._model.optimizer
        return Result(
            policy=self.policy,
            accuracy=accuracy,
            step_seconds=statistics.median(self._timer.seconds),
            peak_bytes=self._peak.bytes,
            loss_scale=float(optimizer.loss_scale),
            skipped_steps=int(optimizer.skipped_steps),
        )


class StepTimer(keras.callbacks.Callback):
    """Measures the training steps after the first few, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops it once the device has finished the step."""
        keras.ops.convert_to_numpy(logs["loss"])
        self._steps += 1
        if self._steps > WARM_UP_STEPS:
            self.seconds.append(time.perf_counter() - self._start)


def make_model(policy: str) -> keras.Model:
    """Returns a compiled CNN with 824 thousand weights and a float32 head."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, 2, "same", activation="relu", dtype=policy),
            layers.Conv2D(64, 3, 2, "same", activation="relu", dtype=policy),
            layers.Flatten(dtype=policy),
            layers.Dense(256, activation="relu", dtype=policy),
            layers.Dense(10, dtype="float32"),
        ]
    )
    model.compile(
        optimizer=mp.wrap("adam"),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def table(results: list[Result]) -> str:
    """Returns the results as lines of text, float32 first."""
    header = (
        f"{'precision':<15} {'accuracy':>9} {'ms/step':>8} {'speed-up':>9} "
        f"{'peak memory':>12} {'loss scale':>11} {'skipped':>8}"
    )
    lines = [header, "-" * len(header)]
    for result in results:
        peak = (
            "not known"
            if result.peak_bytes is None
            else f"{result.peak_bytes / 2**20:.0f} MiB"
        )
        lines.append(
            f"{result.policy:<15} {result.accuracy:>9.1%} "
            f"{result.step_seconds * 1000:>8.2f} "
            f"{results[0].step_seconds / result.step_seconds:>8.2f}x "
            f"{peak:>12} {result.loss_scale:>11g} {result.skipped_steps:>8}"
        )
    return "\n".join(lines)


def summary(results: list[Result]) -> str:
    """Returns one sentence: what this machine gains from 16 bits."""
    baseline, *others = results
    best = min(others, key=lambda result: result.step_seconds)
    ratio = baseline.step_seconds / best.step_seconds
    lost = max(0.0, baseline.accuracy - best.accuracy) * 100
    if ratio >= 1.05:
        gain = f"this machine trains this network {ratio:.2f} times as fast"
    elif ratio > 0.95:
        gain = "this machine trains this network as fast as in float32"
    else:
        gain = (
            f"this machine trains this network {1 / ratio:.2f} times as slowly"
        )
    which = ", the faster of the two 16-bit precisions," if others[1:] else ""
    return (
        f"In {best.policy}{which} {gain}, and loses {lost:.1f} points of "
        "accuracy."
    )
