"""Orthogonal initial values of 16-bit variables.

They come from a QR decomposition, which TensorFlow does not have in bfloat16,
so that Keras cannot build an LSTM with bfloat16 variables. A layer has no say
in how its initializer is called, so one method of Keras's `Orthogonal` is
extended, here and nowhere else, when the first policy with 16-bit variables is
made. In float32 and float64 it does what it did.
"""

import functools
from typing import Any

import keras

from tf_mixprec.numerics.casting import has_16_bits


@functools.cache
def widen_orthogonal() -> None:
    """Makes orthogonal matrices in float32 before they are rounded."""
    original = keras.initializers.Orthogonal.__call__

    @functools.wraps(original)
    def call(self: Any, shape: Any, dtype: Any = None) -> Any:
        name = keras.backend.standardize_dtype(dtype)
        if not has_16_bits(name):
            return original(self, shape, dtype)
        return keras.ops.cast(original(self, shape, "float32"), name)

    keras.initializers.Orthogonal.__call__ = call
