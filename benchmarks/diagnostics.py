"""What diagnosing costs: callbacks in `fit`, reports, and one probed step.

    python benchmarks/diagnostics.py
    python benchmarks/diagnostics.py --sections callbacks --rounds 9

On the CNN and the 4,000 digits of `tf-mixprec demo`, batches of 64.

callbacks: mean time of a step of `fit` with a callback and its defaults, by
that without one, epoch by epoch: the `fit`s take turns. A second one without a
callback shows what is noise. The same of the time of the processors, which
other work on the machine disturbs less. The first epochs, in which a callback
traces its steps, are not counted. In mixed_bfloat16, whose steps are short on
CPUs.

steps: a step that is looked at, by a plain training step, in one interleaved
run. A sample has the ranges of outputs and their gradients, for
`NumericsMonitor`; "ranges" are those of all tensors, as in its second looks.

reports: seconds of a first call, tracing and compilation included, and of a
second one, in mixed_bfloat16 and on 512 digits. With `--float16` also in
mixed_float16, where `mp.diagnose` looks for loss scales: slow on CPUs.
"""

import argparse
import concurrent.futures
import dataclasses
import random
import threading
import time
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from timing import Ratio
from timing import interleaved
from timing import machine
from timing import write_json

import tf_mixprec as mp
from tf_mixprec.cli import demo
from tf_mixprec.cli import mnist
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.subject import Subject

BATCH_SIZE = 64
EPOCH = 500  # steps
TRACED = 2  # epochs: `PrecisionDrift` first compares at step 500
REPORT_EXAMPLES = 512
BASELINE = "no callback"
CONTROL = "no callback again"
CALLBACKS: dict[str, Callable[[], list[keras.callbacks.Callback]]] = {
    BASELINE: lambda: [],
    CONTROL: lambda: [],
    "NumericsMonitor": lambda: [mp.callbacks.NumericsMonitor()],
    "PrecisionDrift": lambda: [mp.callbacks.PrecisionDrift()],
    "UpdateMonitor": lambda: [mp.callbacks.UpdateMonitor()],
}
LOOKS: dict[str, dict[str, bool]] = {
    "sample": {"full": False, "only_outputs": True},
    "ranges": {"full": False},
    "all statistics": {"full": True},
}
REPORTS: dict[str, Callable[..., object]] = {
    "audit": lambda model, x, y: mp.audit(model, batch_size=BATCH_SIZE),
    "find_nonfinite": lambda *data: mp.find_nonfinite(
        *data, batch_size=BATCH_SIZE
    ),
    "diagnose": lambda *data: mp.diagnose(*data, batch_size=BATCH_SIZE),
    "compare": lambda *data: mp.compare(*data, batch_size=BATCH_SIZE),
}


def make_model(policy: str, *, jit_compile: bool = False) -> keras.Model:
    """Returns the CNN of the demo, compiled."""
    model = demo.make_model(policy)
    mp.compile(
        model,
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    return model


class Turns(keras.callbacks.Callback):
    """Lets several `fit`s run in threads, one at a time, epoch by epoch.

    Notes the seconds of each epoch, and those of all processors.
    """

    def __init__(self, orders: Sequence[Sequence[str]], name: str, shared: Any):
        super().__init__()
        self._turns = [turn for order in orders for turn in order]
        self._name = name
        self._shared = shared
        self.seconds: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Waits for its turn and starts the clock."""
        with self._shared.moved:
            self._shared.moved.wait_for(self._is_next)
        if self._shared.failed:
            raise RuntimeError("Another `fit` has failed.")
        self._start = time.perf_counter(), time.process_time()

    def _is_next(self) -> bool:
        shared = self._shared
        return shared.failed or self._turns[shared.turn] == self._name

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the clock and gives the turn away."""
        start, processors = self._start
        self.seconds.append(
            (time.perf_counter() - start, time.process_time() - processors)
        )
        with self._shared.moved:
            self._shared.turn += 1
            self._shared.moved.notify_all()


def epoch_times(
    x: np.ndarray, y: np.ndarray, names: Sequence[str], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Returns the times of the epochs of a `fit` with each callback.

    Args:
        x: Digits.
        y: Their labels.
        names: Of callbacks.
        rounds: How many epochs of each are measured.
    """
    shuffle = random.Random(0).shuffle
    orders = [list(names) for _ in range(TRACED + rounds)]
    for order in orders:
        shuffle(order)
    shared = types.SimpleNamespace(
        turn=0, failed=False, moved=threading.Condition()
    )
    turns = {name: Turns(orders, name, shared) for name in names}
    models = {name: make_model("mixed_bfloat16") for name in names}

    def fit(name: str) -> None:
        data = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
        models[name].fit(
            data.batch(BATCH_SIZE).prefetch(2),
            steps_per_epoch=EPOCH,
            epochs=TRACED + rounds,
            verbose=0,
            # Last, so that what the other does at the end of an epoch counts.
            callbacks=[*CALLBACKS[name](), turns[name]],
        )

    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        fits = [threads.submit(fit, name) for name in names]
        for done in concurrent.futures.as_completed(fits):
            if done.exception() is not None:
                with shared.moved:
                    shared.failed = True
                    shared.moved.notify_all()
            done.result()
    return {name: each.seconds[TRACED:] for name, each in turns.items()}


def callback_rows(
    x: np.ndarray, y: np.ndarray, names: Sequence[str], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields the figures of each callback."""
    names = [BASELINE, CONTROL, *names]
    times = epoch_times(x, y, names, rounds)
    for kind, words in enumerate(("", ", processors")):
        steps = {
            name: [1000 * each[kind] / EPOCH for each in times[name]]
            for name in names
        }
        for name in names[1:]:
            yield _row(f"{name}{words}", Ratio.of(steps[name], steps[BASELINE]))


def step_rows(
    x: np.ndarray, y: np.ndarray, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields the figures of a probed step, in graph mode and under XLA."""
    for jit_compile in (False, True):
        model = make_model("mixed_bfloat16", jit_compile=jit_compile)
        batch = (tf.constant(x[:BATCH_SIZE]), tf.constant(y[:BATCH_SIZE]), None)
        subject = Subject(model)
        calls: dict[str, Callable[[], object]] = {
            "plain step": lambda m=model, b=batch: m.train_on_batch(*b[:2])
        }
        for name, options in LOOKS.items():
            step = ProbedStep(subject, jit_compile=jit_compile, **options)
            calls[name] = lambda s=step, b=batch: s(b, 1.0)
        times = interleaved(calls, rounds)
        for name in calls:
            ratio = Ratio.of(times[name], times["plain step"])
            yield _row(f"{name}, {_mode(jit_compile)}", ratio)


def report_rows(
    x: np.ndarray, y: np.ndarray, policy: str
) -> Iterator[dict[str, Any]]:
    """Yields the seconds of a first and a second call of each report."""
    x, y = x[:REPORT_EXAMPLES], y[:REPORT_EXAMPLES]
    for jit_compile in (False, True):
        model = make_model(policy, jit_compile=jit_compile)
        for name, report in REPORTS.items():
            seconds = []
            for _ in range(2):
                start = time.perf_counter()
                report(model, x, y)
                seconds.append(time.perf_counter() - start)
            yield {
                "name": f"{name}, {_mode(jit_compile)}",
                "policy": policy,
                "first": seconds[0],
                "second": seconds[1],
                "text": f"{seconds[0]:6.2f} s {seconds[1]:6.2f} s",
            }


def _mode(jit_compile: bool) -> str:
    return "XLA" if jit_compile else "graph"


def _row(name: str, ratio: Ratio) -> dict[str, Any]:
    text = str(ratio).replace(f"{ratio.median:5.2f}", f"{ratio.median:6.3f}", 1)
    return {"name": name, **dataclasses.asdict(ratio), "text": text}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = ("callbacks", "steps", "reports")
    parser.add_argument(
        "--sections", nargs="+", choices=sections, default=list(sections)
    )
    asked = [name for name in CALLBACKS if name not in (BASELINE, CONTROL)]
    parser.add_argument("--callbacks", nargs="+", choices=asked, default=asked)
    parser.add_argument(
        "--rounds",
        type=int,
        default=12,
        help="epochs of 500 steps with each callback (default: 12)",
    )
    parser.add_argument(
        "--float16", action="store_true", help="also reports in mixed_float16"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    arguments = parser.parse_args(argv)

    for key, value in machine().items():
        print(f"{key + ':':<12}{value}")
    (x, y), _ = mnist.load()
    rows = {
        "callbacks": lambda: callback_rows(
            x, y, arguments.callbacks, arguments.rounds
        ),
        "steps": lambda: step_rows(x, y, 10 * arguments.rounds),
        "reports": lambda: report_rows(x, y, "mixed_bfloat16"),
        "reports in float16": lambda: report_rows(x, y, "mixed_float16"),
    }
    if arguments.float16:
        arguments.sections.append("reports in float16")
    figures = []
    for section in arguments.sections:
        print(f"\n{section}")
        for row in rows[section]():
            print(f"{row['name']:<28}{row.pop('text')}", flush=True)
            figures.append({"section": section, **row})
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
