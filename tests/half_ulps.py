"""Half an ulp in 16-bit formats, by the bits of NumPy and `ml_dtypes`."""

from fractions import Fraction

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def half_ulps(values, name):
    """Returns half the distance from rounded values to the next outer ones."""
    dtype = DTYPES[name]
    # Beyond the largest number its distance to the one before counts.
    largest = float(ml_dtypes.finfo(dtype).max)
    clipped = np.clip(np.abs(values.astype("float64")), 0, largest)
    rounded = np.abs(clipped.astype("float32").astype(dtype))
    bits = rounded.view("uint16")
    is_largest = rounded == ml_dtypes.finfo(dtype).max
    inner = np.where(is_largest, bits - 1, bits).astype("uint16")
    spacing = (inner + 1).astype("uint16").view(dtype).astype(
        "float64"
    ) - inner.view(dtype).astype("float64")
    return spacing / 2


def expected_below(old, new, name):
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(new.astype("float64") - old.astype("float64"))
    bounds = half_ulps(old, name)
    expected = np.asarray(change < bounds)
    for index in map(tuple, np.argwhere(change == bounds)):
        # Float64 may have rounded it.
        exact = Fraction(float(new[index])) - Fraction(float(old[index]))
        expected[index] = abs(exact) < Fraction(float(bounds[index]))
    return expected
