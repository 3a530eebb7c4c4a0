"""How often a callback looks at what is on the device."""

import numbers
from typing import Any


class EveryBatches:
    """Says when so many batches have passed, steps of one execution included.

    Args:
        check_every: Int, at least 1: how many.

    Raises:
        TypeError: If it is no int.
        ValueError: If it is below 1.
    """

    def __init__(self, check_every: int):
        check_steps("check_every", check_every)
        self._check_every = check_every
        self._last = -1

    def restart(self) -> None:
        """Begins an epoch."""
        self._last = -1

    def have_passed(self, batch: int) -> bool:
        """Returns whether it is time to look.

        Args:
            batch: The index in the epoch of the batch that has ended. It leaps
                with `steps_per_execution`.
        """
        if batch - self._last < self._check_every:
            return False
        self._last = batch
        return True


def check_steps(name: str, value: Any) -> None:
    """Raises unless `value` is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be an int, because it counts steps. Received: "
            f"{name}={value!r}"
        )
    if value < 1:
        raise ValueError(
            f"`{name}` must be at least 1, because it counts steps; to hear of "
            "less give a greater number. Received: "
            f"{name}={value!r}"
        )
