"""A step made again with the random numbers that it had."""

from collections.abc import Callable
from typing import TypeVar

import keras
import numpy as np

from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.untouched import untouched

T = TypeVar("T")


def with_the_same_numbers(
    probed: ProbedStep, batch: Batch, work: Callable[[], T]
) -> T:
    """Runs something with random states as they were a step ago.

    A step draws the same count of numbers every time, so its states can be
    wound back by what one step moves them; nothing need be kept of a step that
    turns out well.

    Args:
        probed: Makes the step.
        batch: `(x, y, sample_weight)`.
        work: What is run.
    """
    states = probed.random_states
    if states and probed.draws is None:
        probed(batch)
    with untouched(states):
        for state, drawn in zip(states, probed.draws or (), strict=True):
            now = keras.ops.convert_to_numpy(state)
            state.assign(np.asarray(now - drawn, now.dtype))
        return work()
