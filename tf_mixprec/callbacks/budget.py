"""How much time may be spent on more than training."""

import time
from collections.abc import Callable
from typing import Any


class Budget:
    """Says whether there is time left.

    Args:
        share: Of the time since now that may be spent, from 0 to 1; `None` for
            all that is asked for.
    """

    def __init__(self, share: float | None):
        self._share = share
        self._began = time.perf_counter()
        self._spent = 0.0
        self._last = 0.0

    def allows(self) -> bool:
        """Returns whether as much as the last time can be spent again."""
        if self._share is None:
            return True
        elapsed = time.perf_counter() - self._began
        return self._spent + self._last <= self._share * elapsed

    def spend(self, work: Callable[[], None]) -> None:
        """Runs something and counts its time.

        Args:
            work: It; it must not end before the device has done it.
        """
        start = time.perf_counter()
        work()
        self._last = time.perf_counter() - start
        self._spent += self._last


def check_overhead(max_overhead: Any) -> None:
    """Raises unless this is a share, or `None`."""
    if max_overhead is None:
        return
    if isinstance(max_overhead, bool) or not isinstance(
        max_overhead, (int, float)
    ):
        raise TypeError(
            "`max_overhead` must be a float, because it is a share of time. "
            f"Received: max_overhead={max_overhead!r}"
        )
    if not 0.0 < max_overhead <= 1.0:
        raise ValueError(
            "`max_overhead` must be above 0 and at most 1, because it is a "
            "share of the time of training; leave the callback out for none, "
            "and give None for no bound. "
            f"Received: max_overhead={max_overhead!r}"
        )
