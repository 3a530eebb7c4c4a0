"""Orthogonal initial values in 16 bits."""

import keras
import numpy as np
import pytest

import tf_mixprec as mp


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_they_are_those_of_float32_rounded(dtype):
    mp.Policy(dtype)
    initializer = keras.initializers.Orthogonal(gain=0.5, seed=3)
    exact = initializer((4, 6))
    assert keras.backend.standardize_dtype(exact.dtype) == "float32"
    narrow = initializer((4, 6), dtype=dtype)
    assert keras.backend.standardize_dtype(narrow.dtype) == dtype
    np.testing.assert_array_equal(
        np.array(narrow), np.array(exact).astype(dtype)
    )
    np.testing.assert_allclose(
        exact @ np.transpose(exact), np.eye(4) / 4, atol=1e-6
    )


def test_keras_asks_the_initializer_for_the_dtype_of_the_variable():
    """Or else nothing would come of the extended method."""
    layer = keras.layers.Dense(
        3, kernel_initializer="orthogonal", dtype=mp.Policy("bfloat16")
    )
    layer.build((None, 3))
    assert layer.kernel.dtype == "bfloat16"
