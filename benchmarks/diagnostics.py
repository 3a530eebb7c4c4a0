"""What diagnosing costs: callbacks in `fit`, reports, and one probed step.

    python benchmarks/diagnostics.py
    python benchmarks/diagnostics.py --sections callbacks --rounds 9

On the CNN and the 4,000 digits of `tf-mixprec demo`, batches of 64.

callbacks: mean time of the steps 501 to 1,500 of `fit` with a callback and its
defaults, by that without one, round by round; and the same of the time of the
processors, which other work on the machine disturbs less. What a callback
traces is traced before. In mixed_bfloat16, whose steps are short on CPUs.

steps: a step with statistics of all tensors, by a plain training step, in one
interleaved run.

reports: seconds of a first call, tracing and compilation included, and of a
second one, in mixed_bfloat16 and on 512 digits. With `--float16` also in
mixed_float16, where `mp.diagnose` looks for loss scales: slow on CPUs.
"""

import argparse
import dataclasses
import random
import time
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
EPOCH = 250  # steps
TRACED = 2  # epochs: `PrecisionDrift` first compares at step 500
MEASURED = 4  # epochs
REPORT_EXAMPLES = 512
BASELINE = "no callback"
CALLBACKS: dict[str, Callable[[], list[keras.callbacks.Callback]]] = {
    BASELINE: lambda: [],
    "NumericsMonitor": lambda: [mp.callbacks.NumericsMonitor()],
    "PrecisionDrift": lambda: [mp.callbacks.PrecisionDrift()],
    "UpdateMonitor": lambda: [mp.callbacks.UpdateMonitor()],
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


class EpochTimes(keras.callbacks.Callback):
    """Notes the seconds of each epoch, and those of all processors."""

    def __init__(self):
        super().__init__()
        self.seconds: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._start = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops it."""
        start, processors = self._start
        self.seconds.append(
            (time.perf_counter() - start, time.process_time() - processors)
        )


def step_times(name: str, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Returns the mean times of a step of `fit`, in milliseconds."""
    model = make_model("mixed_bfloat16")
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH_SIZE)
    times = EpochTimes()
    model.fit(
        data.prefetch(2),
        steps_per_epoch=EPOCH,
        epochs=TRACED + MEASURED,
        verbose=0,
        callbacks=[times, *CALLBACKS[name]()],
    )
    passed, processors = map(sum, zip(*times.seconds[TRACED:], strict=True))
    steps = EPOCH * MEASURED
    return 1000 * passed / steps, 1000 * processors / steps


def callback_rows(
    x: np.ndarray, y: np.ndarray, names: Sequence[str], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields the figures of each callback."""
    order = [BASELINE, *(name for name in names if name != BASELINE)]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in order}
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            times[name].append(step_times(name, x, y))
    for kind, words in enumerate(("", ", processors")):
        baseline = [each[kind] for each in times[BASELINE]]
        for name in times:
            own = [each[kind] for each in times[name]]
            yield _row(f"{name}{words}", Ratio.of(own, baseline))


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
        for name, full in (("ranges", False), ("all statistics", True)):
            step = ProbedStep(subject, jit_compile=jit_compile, full=full)
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
    parser.add_argument(
        "--callbacks", nargs="+", choices=CALLBACKS, default=list(CALLBACKS)
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the callbacks (default: 5)"
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
        "steps": lambda: step_rows(x, y, 20 * arguments.rounds),
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
