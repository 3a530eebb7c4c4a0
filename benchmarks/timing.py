"""Interleaved timing: every variant once a round, in random order."""

import dataclasses
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import TypeVar

import keras
import tensorflow as tf

WARM_UP_CALLS = 3  # tracing, compilation, first touch of the memory

Name = TypeVar("Name", bound=Hashable)


def interleaved(
    variants: dict[Name, Callable[[], object]], rounds: int
) -> dict[Name, list[float]]:
    """Returns the times of each variant, one a round, in milliseconds.

    Args:
        variants: By name, what to time: it returns when the device is done.
        rounds: How often each is called.
    """
    gc.collect()  # what earlier variants held, gigabytes in cycles
    for call in variants.values():
        for _ in range(WARM_UP_CALLS):
            call()
    times: dict[Name, list[float]] = {name: [] for name in variants}
    order = list(variants)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            variants[name]()
            times[name].append((time.perf_counter() - start) * 1000)
    return times


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One variant against another, round by round.

    Args:
        median_ms: Median time of the variant, in milliseconds.
        median: Median over the rounds of the variant's time divided by the
            other's in the same round, so that a slow round slows both.
        minimum: The smallest of these quotients.
        maximum: The largest.
    """

    median_ms: float
    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, times: list[float], baseline: list[float]) -> "Ratio":
        """Returns the ratio of two lists of times of the same rounds."""
        quotients = [t / b for t, b in zip(times, baseline, strict=True)]
        return cls(
            median_ms=statistics.median(times),
            median=statistics.median(quotients),
            minimum=min(quotients),
            maximum=max(quotients),
        )

    def __str__(self) -> str:
        return (
            f"{self.median:5.2f} ({self.minimum:.2f}-{self.maximum:.2f}) "
            f"{self.median_ms:8.2f} ms"
        )


def machine() -> dict[str, str]:
    """Returns what the figures were measured on."""
    devices = tf.config.list_physical_devices()
    return {
        "processor": _processor(),
        "cores": str(_core_count()),
        "devices": ", ".join(device.name for device in devices),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }


def write_json(path: str, figures: list[dict[str, Any]]) -> None:
    """Writes figures to a file, with the machine they are of."""
    with open(path, "w") as file:
        json.dump({"machine": machine(), "figures": figures}, file, indent=1)


def _core_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:  # no Linux
        pass
    return platform.processor()
