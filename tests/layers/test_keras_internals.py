"""The private parts of Keras that the layers use are where we look."""

import keras
import numpy as np
import pytest

from tf_mixprec.layers import keras_internals

MAKERS = [
    lambda: keras.layers.MultiHeadAttention(2, 4),
    lambda: keras.layers.GroupQueryAttention(4, 4, 2),
]
X = np.ones((1, 3, 8), "float32")


def test_sublayers():
    dense, dropout = keras.layers.Dense(1), keras.layers.Dropout(0.5)
    inner = keras.Sequential([dense])
    outer = keras.Sequential([inner, dropout])
    found = keras_internals.sublayers(outer)
    assert [id(x) for x in (inner, dropout)] == [
        id(x) for x in found if x is not outer
    ]


@pytest.mark.parametrize("make", MAKERS)
def test_scores_are_made_by_these_layers(make):
    layer = make()
    layer.build(X.shape, X.shape)
    assert type(layer._softmax) is keras.layers.Softmax
    assert type(layer._dropout_layer) is keras.layers.Dropout
    assert not layer._flash_attention
    assert not layer._softmax.weights
    assert not layer._dropout_layer.weights


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("scores", [False, True])
def test_the_call_goes_through_compute_attention(make, scores):
    theirs = type(make())
    seen = []

    class Spy(theirs):
        def _compute_attention(self, query, key, value, *args, **kwargs):
            seen.append((query.shape, key.shape, value.shape))
            return super()._compute_attention(
                query, key, value, *args, **kwargs
            )

    layer = Spy.from_config(make().get_config())
    layer(X, X, use_causal_mask=True, return_attention_scores=scores)
    heads = 2 if "num_heads" in layer.get_config() else 4
    assert seen == [((1, 3, heads, 4),) * 3]


@pytest.mark.parametrize("make", MAKERS)
def test_projections_have_the_policy_of_the_layer(make):
    layer = type(make()).from_config(
        {**make().get_config(), "dtype": "mixed_float16"}
    )
    layer.build(X.shape, X.shape)
    projections = [
        x
        for x in keras_internals.sublayers(layer)
        if isinstance(x, keras.layers.EinsumDense)
    ]
    assert {x.compute_dtype for x in projections} == {"float16"}
    assert len(projections) == 4
