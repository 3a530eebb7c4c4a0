"""Tests for `diagnostics.update_statistics`, by NumPy on the bits."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from half_ulps import DTYPES
from half_ulps import expected_below
from half_ulps import half_ulps

from tf_mixprec.diagnostics import update_statistics
from tf_mixprec.diagnostics.update_statistics import is_below_half_ulp
from tf_mixprec.diagnostics.update_statistics import statistics
from tf_mixprec.numerics.formats import float_format

NAMES = pytest.mark.parametrize("name", DTYPES)


def weights(name):
    """Returns float32 values of every magnitude, and around each power."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 0x7F7FFFFF, 4000).astype("int32")
    powers = np.float32(2.0) ** np.arange(-126, 127, dtype="float32")
    info = ml_dtypes.finfo(DTYPES[name])
    edges = np.array(
        [
            0.0,
            1e-45,
            1e-40,
            float(info.smallest_normal),
            float(info.smallest_subnormal),
            float(info.max),
        ],
        "float32",
    )
    values = np.concatenate(
        [
            bits.view("float32"),
            powers,
            np.nextafter(powers, np.float32(0)),
            np.nextafter(powers, np.float32(np.inf)),
            edges,
        ]
    )
    return np.concatenate([values, -values]).astype("float32")


def below(old, new, name):
    bits = [np.float32(each).view("int32") for each in (old, new)]
    return is_below_half_ulp(
        *map(tf.constant, bits), float_format(name)
    ).numpy()


@NAMES
@pytest.mark.parametrize("factor", [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 4.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_half_an_ulp_is_exact(name, factor, sign):
    old = weights(name)
    with np.errstate(over="ignore"):
        new = (old + sign * factor * 2 * half_ulps(old, name)).astype("float32")
    np.testing.assert_array_equal(
        below(old, new, name), expected_below(old, new, name)
    )


@NAMES
def test_ulps_around_a_bound_of_half_an_ulp(name):
    """The float32 numbers next to it are on the right sides."""
    old = weights(name)
    at = (old.astype("float64") + half_ulps(old, name)).astype("float32")
    above = np.nextafter(at, np.float32(np.inf))
    assert not below(old, above, name).any()
    new = np.nextafter(at, np.float32(-np.inf))
    expected = expected_below(old, new, name)
    assert expected.mean() > 0.5  # not where the float32 is coarser
    np.testing.assert_array_equal(below(old, new, name), expected)


def test_np_spacing_agrees():
    """The oracle is right where NumPy has one."""
    values = weights("float16")
    values = values[np.abs(values) < 65504]
    rounded = np.abs(values.astype("float16"))
    rounded = rounded[rounded < 65504]
    np.testing.assert_array_equal(
        half_ulps(rounded.astype("float32"), "float16") * 2,
        np.spacing(rounded).astype("float64"),
    )


@NAMES
def test_what_is_below_is_lost(name):
    """Rounding to nearest leaves the rounded weight as it is."""
    random = np.random.default_rng(0)
    old = random.normal(size=10_000).astype("float32")
    old = old.astype(DTYPES[name]).astype("float32")
    new = (old * (1 + random.normal(size=10_000) * 2e-3)).astype("float32")
    lost = new.astype(DTYPES[name]) == old.astype(DTYPES[name])
    found = below(old, new, name)
    assert 0 < found.sum() < found.size
    # A tie goes to even, and half of half an ulp below a power of two is lost.
    at_edge = np.abs(new - old) == half_ulps(old, name)
    at_edge |= np.abs(np.frexp(old)[0]) == 0.5
    np.testing.assert_array_equal(found[~at_edge], lost[~at_edge])


def median(before, after, mask):
    stride = max(1, -(-before.size // update_statistics.SAMPLE))
    before, after, mask = (
        each.ravel()[::stride] for each in (before, after, mask)
    )
    counts = mask & (before != 0)
    if not counts.any():
        return np.nan
    return np.median(np.abs(after - before)[counts] / np.abs(before)[counts])


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (200, 700), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "traced", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_statistics_of_a_variable(shape, dtype, traced):
    random = np.random.default_rng(1)
    kept = DTYPES.get(dtype, np.float32)
    before = np.asarray(random.normal(size=shape)).astype(kept)
    change = before.astype("float32") * random.normal(size=shape) * 1e-3
    after = (before.astype("float32") + change).astype(kept)
    mask = np.asarray(random.random(shape) < 0.7)
    function = tf.function(statistics) if traced else statistics
    found = function(*map(tf.constant, (before, after, mask))).numpy()
    old, new = (each.astype("float32") for each in (before, after))
    assert found[0] == mask.sum()
    assert found[1] == (mask & (old == new)).sum()
    for count, name in zip(found[2:4], update_statistics.WHAT_IF, strict=True):
        assert count == (mask & expected_below(old, new, name)).sum()
    # In float32: the quotient is rounded there.
    np.testing.assert_allclose(
        found[4], median(old, new, mask), rtol=1e-6, equal_nan=True
    )


def test_nothing_with_a_gradient():
    values = tf.ones((4,))
    found = statistics(values, values * 2, tf.zeros((4,), tf.bool)).numpy()
    np.testing.assert_array_equal(found, [0, 0, 0, 0, np.nan])


@pytest.mark.parametrize(
    ("before", "after", "dead"),
    [
        pytest.param(1e-40, 2e-40, 0, id="subnormal_numbers_are_told_apart"),
        pytest.param(0.0, -0.0, 1, id="zeros_are_equal"),
        pytest.param(1.0, np.nextafter(np.float32(1), 2), 0, id="one_ulp"),
        pytest.param(1.0, 1.0, 1, id="the_same"),
    ],
)
def test_dead_is_by_bits(before, after, dead):
    arguments = (np.float32([before]), np.float32([after]), np.array([True]))
    assert statistics(*map(tf.constant, arguments)).numpy()[1] == dead


def test_float64_is_compared_in_float64():
    before = tf.constant([1.0], tf.float64)
    found = statistics(before, before + 1e-12, tf.constant([True])).numpy()
    assert found[:4].tolist() == [1, 0, 1, 1]
