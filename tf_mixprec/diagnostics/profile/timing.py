"""Interleaved timing: every call once a round, so that noise slows all."""

import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import keras
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LEAST_ROUNDS = 3  # where one takes longer than there is time

Name = TypeVar("Name", bound=Hashable)


class Ratio(NamedTuple):
    """One time by another, round by round.

    Args:
        median: Of the quotients of all rounds.
        p10: Their quantile of 10 %.
        p90: Their quantile of 90 %.
    """

    median: float
    p10: float
    p90: float


def interleaved(
    calls: Mapping[Name, Callable[[], Any]], rounds: int, seconds: float
) -> dict[Name, list[float]]:
    """Returns the times of each call, one a round, in milliseconds.

    Args:
        calls: By name, what to time, warmed up.
        rounds: How many rounds there are at the most.
        seconds: When to stop, after `LEAST_ROUNDS` rounds.
    """
    times: dict[Name, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle  # the random state stays the user's
    end = time.perf_counter() + seconds
    for index in range(rounds):
        if index >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        shuffle(order)
        for name in order:
            times[name].append(_milliseconds(calls[name]))
    return times


def ratio(times: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Returns the ratio of two lists of times of the same rounds."""
    quotients = [t / b for t, b in zip(times, baseline, strict=True)]
    p10, p90 = np.quantile(quotients, (0.1, 0.9))
    return Ratio(statistics.median(quotients), float(p10), float(p90))


def difference(times: Sequence[float], baseline: Sequence[float]) -> float:
    """Returns the median difference of two lists of times, by rounds.

    Below 0 where it is less than the noise.
    """
    pairs = zip(times, baseline, strict=True)
    return statistics.median(t - b for t, b in pairs)


def _milliseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    tf.test.experimental.sync_devices()  # a GPU goes on after the call
    return (time.perf_counter() - start) * 1000.0
