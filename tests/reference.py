"""A plain-Python loss scale, written from the documentation and not the code.

It remembers the whole history of a run and asks its questions of that, where
the package keeps counters.
"""

import dataclasses
import itertools

import numpy as np


@dataclasses.dataclass
class ReferenceLossScale:
    """The loss scale of a run, step by step.

    Args:
        rule: A `mp.DynamicLossScale`.
    """

    rule: object

    def __post_init__(self):
        self.scale = np.float32(self.rule.initial_scale)
        self.history = []  # True for a step with inf or nan
        self.grew = []  # whether the scale grew at that step
        self.backed_off = []

    def step(self, found_inf):
        """Takes a step and returns the new scale."""
        self.history.append(found_inf)
        grows = not found_inf and self._growth_is_due()
        backs_off = found_inf and self._backoff_is_due()
        self.grew.append(grows)
        self.backed_off.append(backs_off)
        if grows:
            with np.errstate(over="ignore"):
                grown = self.scale * np.float32(self.rule.growth_factor)
            self.scale = grown if np.isfinite(grown) else self.scale
        if backs_off:
            self.scale = self.scale * np.float32(self.rule.backoff_factor)
        self.scale = np.float32(
            min(max(self.scale, self.rule.min_scale), self.rule.max_scale)
        )
        return self.scale

    def good_run(self):
        """Returns how many of the last steps were good, without a break."""
        return sum(
            1 for _ in itertools.takewhile(lambda x: not x, self.history[::-1])
        )

    def bad_run(self):
        """Returns how many of the last steps were bad, without a break."""
        return sum(1 for _ in itertools.takewhile(bool, self.history[::-1]))

    def _growth_is_due(self):
        run = self.good_run()
        since_growth = [
            i
            for i in range(len(self.history) - run, len(self.history) - 1)
            if self.grew[i]
        ]
        if since_growth:
            return len(self.history) - 1 - since_growth[-1] == (
                self.rule.growth_interval
            )
        return run == self.rule.growth_interval + self.rule.growth_delay

    def _backoff_is_due(self):
        used = 0
        for i, bad in enumerate(self.history):
            used += bad
            refilled = {
                "growth": self._at(self.grew, i),
                "good_step": not bad,
                "backoff": not bad or self._at(self.backed_off, i),
            }[self.rule.hysteresis_refill]
            if refilled:
                used = 0
        return used >= self.rule.hysteresis and not self._is_tolerated()

    def _is_tolerated(self):
        now = len(self.history) - 1
        moved = [i for i in range(now) if self.grew[i] or self.backed_off[i]]
        backed_off = [i for i in range(now) if self.backed_off[i]]
        steps = now - (moved[-1] if moved else -1)
        overflows = sum(self.history[(backed_off or [-1])[-1] + 1 :])
        return np.float32(overflows) / np.float32(steps) < np.float32(
            self.rule.tolerance
        )

    @staticmethod
    def _at(flags, i):
        return i < len(flags) and flags[i]
