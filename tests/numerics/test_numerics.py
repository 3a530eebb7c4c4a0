"""Tests for `tf_mixprec.numerics`."""

import ml_dtypes
import numpy as np
import pytest

from tf_mixprec import numerics

BAD = [np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    "dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"], ids=str
)
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_found_inf_sees_every_kind_in_every_dtype(bad, dtype):
    array = np.ones((3, 4), dtype)
    assert not numerics.found_inf([array])
    array[2, 1] = bad
    assert numerics.found_inf([np.ones(2, "float32"), array])


@pytest.mark.parametrize(
    "dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"], ids=str
)
def test_found_inf_passes_the_largest_and_the_smallest_numbers(dtype):
    info = ml_dtypes.finfo(dtype)
    numbers = [info.max, info.min, info.smallest_subnormal, -0.0]
    # Enough of the largest that their sum overflows.
    assert not numerics.found_inf([np.array(numbers * 500, dtype)])


def test_found_inf_of_nothing_is_false():
    assert not numerics.found_inf([])
    assert not numerics.found_inf([np.zeros((0, 3), "float32")])
    assert numerics.found_inf([np.float32(np.nan)])


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        ("float16", "float32"),
        (ml_dtypes.bfloat16, "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
    ids=str,
)
def test_widened(dtype, wide):
    array = np.array([1.5, -2.0], dtype)
    widened = numerics.widened(array)
    assert widened.dtype == wide
    np.testing.assert_array_equal(widened, array.astype(wide))


def test_a_python_number_is_widened_to_float32():
    assert numerics.widened(3.0).dtype == "float32"
