"""Which policies the layers of a model have."""

import collections
from typing import Any

import keras

from tf_mixprec.policies.policy import policy_text
from tf_mixprec.training import keras_internals


def policy_counts(model: Any) -> dict[str, int]:
    """Returns by policy how many layers have it; models and inputs left out.

    Args:
        model: The model.
    """
    return dict(
        collections.Counter(
            policy_text(layer.dtype_policy)
            for layer in keras_internals.all_layers(model)
            if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
        )
    )
