"""A default policy for the layers made in a block."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.policies.policy import as_policy


@contextlib.contextmanager
def policy_scope(policy: Any) -> Iterator[keras.DTypePolicy]:
    """Gives layers made in a block a policy, sublayers included.

    A layer that is given `dtype=` keeps what it is given; the layers that it
    makes without follow the scope. The former default comes back at the end,
    also after an exception. Each thread has its own, as in Keras.

    Args:
        policy: A policy, or a string as for `mp.Policy`.

    Yields:
        The policy.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> with mp.policy_scope("mixed_bfloat16"):
    ...     layer = keras.layers.MultiHeadAttention(2, 4)
    >>> layer.compute_dtype, keras.layers.Dense(1).compute_dtype
    ('bfloat16', 'float32')
    """
    policy = as_policy(policy)
    former = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield policy
    finally:
        keras.config.set_dtype_policy(former)
