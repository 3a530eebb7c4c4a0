"""Attention layers with float32 scores."""

import keras

from tf_mixprec.layers.float32_inside import Float32Inside
from tf_mixprec.layers.keras_internals import Float32Scores


@keras.saving.register_keras_serializable("tf_mixprec")
class Attention(Float32Inside, keras.layers.Attention):
    """Dot-product attention, float32 from its inputs to its result.

    In float16 the product of queries and keys overflows for large activations,
    and the mask, which subtracts 65504, makes a fully masked row nan. Takes the
    arguments of `keras.layers.Attention`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.Attention(dtype="mixed_float16")
    >>> query, value = np.full((1, 1, 4), 300.0), np.full((1, 3, 4), 300.0)
    >>> layer([query, value])[0, 0].numpy().tolist()
    [300.0, 300.0, 300.0, 300.0]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class AdditiveAttention(Float32Inside, keras.layers.AdditiveAttention):
    """Additive attention, float32 from its inputs to its result.

    Scores keep the digits of float32, and a fully masked row is the mean, as in
    float32. Takes the arguments of `keras.layers.AdditiveAttention`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.AdditiveAttention(dtype="mixed_float16")
    >>> query, value = np.full((1, 1, 4), 4e4), np.full((1, 3, 4), 4e4)
    >>> layer([query, value])[0, 0].numpy().tolist()
    [40000.0, 40000.0, 40000.0, 40000.0]
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class MultiHeadAttention(Float32Scores, keras.layers.MultiHeadAttention):
    """Multi-head attention: 16-bit products, float32 scores.

    The projections, where most of the products are, and the product with the
    values run in the compute dtype. Scores, scaling, mask, softmax and dropout
    run in float32: in float16 the scores overflow for large activations, and in
    bfloat16 a score of 100 is off by up to 0.25, its weight by 28%. Takes the
    arguments of `keras.layers.MultiHeadAttention`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.MultiHeadAttention(2, 8, dtype="mixed_float16")
    >>> x = np.random.default_rng(0).normal(size=(1, 4, 16)) * 300.0
    >>> bool(np.isfinite(layer(x, x)).all())
    True
    """


@keras.saving.register_keras_serializable("tf_mixprec")
class GroupedQueryAttention(Float32Scores, keras.layers.GroupQueryAttention):
    """Grouped-query attention: 16-bit products, float32 scores.

    See `mp.layers.MultiHeadAttention`. Takes the arguments of
    `keras.layers.GroupQueryAttention`.

    Example:

    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> layer = mp.layers.GroupedQueryAttention(8, 4, 2, dtype="mixed_float16")
    >>> x = np.random.default_rng(0).normal(size=(1, 4, 16)) * 300.0
    >>> bool(np.isfinite(layer(x, x)).all())
    True
    """
