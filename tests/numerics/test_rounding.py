"""Rounding to 16 bits, against integers and NumPy."""

import fractions

import ml_dtypes
import numpy as np
import pytest

import tf_mixprec as mp
from tf_mixprec.numerics import rounding

UPPER = np.arange(2**16, dtype="uint32") << 16
# Ends and middle of the lower half, and one number of no account.
LOWER = (0, 1, 0x5A5A, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


def floats(bits):
    return np.asarray(bits, "uint32").view("float32")


def bits_of(x):
    return np.asarray(x, "float32").view("uint32")


@pytest.mark.parametrize("lower", LOWER, ids=hex)
def test_a_weight_and_its_remainder_are_every_float32(lower):
    x = floats(UPPER | lower)
    weight, rest = rounding.rounded(x, "bfloat16"), rounding.remainder(x)
    again = np.array(rounding.combined(weight, rest))
    nan = np.isnan(x)
    np.testing.assert_array_equal(bits_of(again)[~nan], bits_of(x)[~nan])
    assert np.isnan(again[nan]).all()
    assert np.isnan(np.array(weight).astype("float32")[nan]).all()


@pytest.mark.parametrize("lower", LOWER, ids=hex)
def test_bfloat16_is_the_nearest_and_half_way_the_larger(lower):
    x = floats(UPPER | lower)
    finite = np.isfinite(x)
    got = np.array(rounding.rounded(x, "bfloat16")).astype("float32")
    # Truncated, and the next one away from zero: one is the nearest.
    small, large = floats(UPPER), floats(UPPER + 0x10000)
    expected = large if lower >= 0x8000 else small
    np.testing.assert_array_equal(
        bits_of(got)[finite], bits_of(expected)[finite]
    )
    if lower != 0x8000:  # where no number is half way, it is NumPy's
        theirs = x[finite].astype(ml_dtypes.bfloat16).astype("float32")
        np.testing.assert_array_equal(got[finite], theirs)


def test_half_to_even_would_not_be_invertible():
    """Two numbers that share weight and remainder if half goes to even."""
    odd, even = floats(0x3F81_8000), floats(0x3F82_8000)
    weights = [w.astype(ml_dtypes.bfloat16) for w in (odd, even)]
    assert weights[0] == weights[1]
    ours = [float(rounding.rounded(w, "bfloat16")) for w in (odd, even)]
    assert ours[0] != ours[1]


def test_float16_saturates_and_is_numpys_otherwise():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=9999) * 10.0 ** rng.integers(-9, 6, 9999)).astype(
        "float32"
    )
    got = np.array(rounding.rounded(x, "float16"))
    with np.errstate(over="ignore"):
        expected = np.clip(x.astype("float16"), -65504, 65504)
    assert (np.abs(x) > 65504).any()
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(float(rounding.rounded(np.float32(np.nan), "float16")))


@pytest.mark.parametrize("value", [1.001, -3.14159, 1e-30, 3e38, 1e-40])
def test_stochastic_rounding_has_the_value_as_its_mean(value):
    x = np.float32(value)
    # Every possible draw once: the mean is exact.
    bits = np.arange(2**16, dtype="int32")
    got = rounding.stochastically_rounded(np.full(2**16, x), bits)
    values, counts = np.unique(
        np.array(got).astype("float32"), return_counts=True
    )
    assert len(values) == 2
    mean = sum(
        fractions.Fraction(float(v)) * int(c)
        for v, c in zip(values, counts, strict=True)
    )
    assert mean == fractions.Fraction(float(x)) * 2**16


def test_stochastic_rounding_leaves_what_is_exact_or_not_finite():
    x = np.float32([1.0, -0.0, 0.0, np.inf, -np.inf, 2.0**-133])
    for bits in (0, 1, 2**16 - 1):
        got = rounding.stochastically_rounded(x, np.full(6, bits, "int32"))
        np.testing.assert_array_equal(
            bits_of(np.array(got).astype("float32")), bits_of(x)
        )
    nan = rounding.stochastically_rounded(np.float32(np.nan), 2**16 - 1)
    assert np.isnan(float(nan))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_epsilon_counts_beside_one(dtype):
    one = np.array(1.0, dtype)
    small = np.array(mp.epsilon(dtype), dtype)
    assert one + small > one
    assert one - small < one
    assert mp.epsilon(dtype) >= 1e-7


def test_epsilon_of_integers_is_refused():
    with pytest.raises(ValueError, match="dtype='int16'"):
        mp.epsilon("int16")


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_any_shape(shape):
    x = np.full(shape, 1 + 2**-9, "float32")
    weight, rest = rounding.rounded(x, "bfloat16"), rounding.remainder(x)
    assert tuple(weight.shape) == tuple(rest.shape) == shape
    again = np.array(rounding.combined(weight, rest))
    np.testing.assert_array_equal(again, x)
    bits = np.zeros(shape, "int32")
    assert tuple(rounding.stochastically_rounded(x, bits).shape) == shape
