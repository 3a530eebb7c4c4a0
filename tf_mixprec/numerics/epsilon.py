"""The small number that keeps a quotient or a logarithm finite."""

import keras
import ml_dtypes


def epsilon(dtype: str) -> float:
    """Returns a small number that still counts beside 1 in a dtype.

    `keras.config.epsilon()` is 1e-7 whatever the dtype: in float16 `1 - 1e-7`
    is 1, so that `log(1 - p + 1e-7)` is -inf for `p = 1`.

    Args:
        dtype: A floating-point dtype, or its name.

    Returns:
        The distance from 1 to the next number, or `keras.config.epsilon()`
        where that is larger.

    Raises:
        ValueError: If `dtype` is none of floating-point numbers.

    Example:

    >>> import tf_mixprec as mp
    >>> mp.epsilon("float16"), mp.epsilon("bfloat16"), mp.epsilon("float64")
    (0.0009765625, 0.0078125, 1e-07)
    """
    dtype = keras.backend.standardize_dtype(dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            "`dtype` must be the name of a float dtype, because integers have "
            f"no number next to 1 to tell from it. Received: dtype={dtype!r}"
        )
    distance = float(ml_dtypes.finfo(dtype).eps)
    return max(distance, keras.config.epsilon())


def is_zero_in(dtype: str, value: float) -> bool:
    """Returns whether a number is too small for a dtype.

    Args:
        dtype: The name of a floating-point dtype.
        value: The number.

    Example:

    >>> is_zero_in("float16", 1e-8), is_zero_in("bfloat16", 1e-8)
    (True, False)
    """
    return float(ml_dtypes.finfo(dtype).dtype.type(value)) == 0.0
