"""Checks of the numbers a rule is made of, each raising the whole message."""

import math
import numbers
from typing import Any

import numpy as np

# The scale lives in a float32 variable. Below the smallest normal number the
# hardware may flush it to 0, above the largest it becomes inf.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # 2**-126
LARGEST_SCALE = float(np.finfo(np.float32).max)  # just below 2**128
# Above it the reciprocal is below the smallest normal number.
LARGEST_WITH_RECIPROCAL = 2.0**126


def check_number(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number and not a boolean."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, numbers.Real
    ):
        raise TypeError(
            f"`{name}` must be a number, because it is used in arithmetic "
            f"with the loss scale. Received: {name}={value!r} "
            f"(type {type(value).__name__})"
        )
    if not math.isfinite(value):
        raise ValueError(
            f"`{name}` must be finite, because inf and nan make every loss "
            f"scale inf or nan. Received: {name}={value!r}"
        )


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raises unless `value` is a whole number of at least `minimum`."""
    check_number(name, value)
    if not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(
            f"`{name}` must be an int of at least {minimum}, because it "
            f"counts steps. Received: {name}={value!r} "
            f"(type {type(value).__name__})"
        )


def check_scale(name: str, value: Any) -> None:
    """Raises unless `value` is a positive, normal float32 number."""
    check_number(name, value)
    if not SMALLEST_SCALE <= value <= LARGEST_SCALE:
        raise ValueError(
            f"`{name}` must lie between 2**-126 and 2**128 (exclusive), "
            "because a loss scale is a positive float32 number and must "
            f"never become 0 or inf. Received: {name}={value!r}"
        )
