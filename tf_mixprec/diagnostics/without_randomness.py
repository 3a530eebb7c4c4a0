"""A model whose layers draw no random numbers, for a while.

A dropout layer draws in its compute dtype, so that another precision would be
another mask, and not the same computation with other rounding.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tf_mixprec.diagnostics.untouched import random_states
from tf_mixprec.policies import kinds
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import covered


def without_randomness(model: Any) -> AbstractContextManager[None]:
    """Makes random layers of Keras's do what they do when not trained.

    For what is traced in the block. Other layers train. Layers of users draw as
    they do.

    Args:
        model: The model.
    """
    layers = [
        layer
        for layer in keras_internals.all_layers(model)
        if _draws(layer) and "training" in _parameters(layer)
    ]
    return covered(layers, "call", _not_training)


def _draws(layer: Any) -> bool:
    """Returns whether a layer of ours or Keras's has a random state."""
    is_ours = type(layer).__module__.split(".")[0] == "tf_mixprec"
    if not (is_ours or kinds.is_keras_own(layer)) or hasattr(layer, "layers"):
        return False
    return bool(random_states(layer))


def _parameters(layer: Any) -> Any:
    return inspect.signature(layer.call).parameters


def _not_training(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_without(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(call).bind(*args, **kwargs)
        given.arguments["training"] = False
        return call(*given.args, **given.kwargs)

    return call_without
