"""Layers whose intermediate results are computed again for the gradient.

Memory for time: of such a layer only the inputs, seeds and statistics are kept
until the backward pass. Random numbers are the same the second time, and moving
statistics move once.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.autocast.recompute import CannotRecomputeError
from tf_mixprec.autocast.recompute import recomputed
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import covered
from tf_mixprec.training.sixteen_bits import path_of


def chosen_layers(model: Any, remat: Any) -> list[Any]:
    """Returns the layers that are to be computed again.

    Args:
        model: The model, built.
        remat: `None`, `True`, or a list of regular expressions for paths.
    """
    if remat is None or remat is False:
        return []
    if remat is True:
        return [
            layer
            for layer in model.layers
            if not isinstance(layer, keras.layers.InputLayer)
        ]
    patterns = [remat] if isinstance(remat, str) else list(remat)
    if not all(isinstance(each, str) for each in patterns):
        raise TypeError(
            "`remat` must be None, True, or a list of regular expressions that "
            f"paths of layers match as a whole. Received: remat={remat!r}"
        )
    found: list[Any] = []
    for pattern in patterns:
        layers = [
            layer
            for layer in keras_internals.all_layers(model)
            if layer is not model and re.fullmatch(pattern, path_of(layer))
        ]
        if not layers:
            paths = [path_of(e) for e in keras_internals.all_layers(model)[1:]]
            raise ValueError(
                "Each of `remat` must match the path of a layer, because it "
                f"says which ones to compute again. Received: {pattern!r}; "
                f"the paths are {paths}"
            )
        found += [each for each in layers if each not in found]
    inside = [e for f in found for e in keras_internals.all_layers(f)[1:]]
    return [each for each in found if each not in inside]


class Remat:
    """Makes the calls of some layers be computed again, while something runs.

    Args:
        layers: The layers.
        strict: Whether a layer that cannot be is an error.
    """

    def __init__(self, layers: list[Any], *, strict: bool):
        self._layers = layers
        self._strict = strict

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function during which the layers are computed again.

        Args:
            function: Any that calls them, in a graph.
        """

        def with_remat(*args: Any, **kwargs: Any) -> Any:
            with covered(self._layers, "call", self._again):
                return function(*args, **kwargs)

        return with_remat

    def _again(
        self, layer: Any, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(call)
        def call_again(*args: Any, **kwargs: Any) -> Any:
            def forward() -> Any:
                return keras_internals.taken(layer, call(*args, **kwargs))

            try:
                results = recomputed(forward)
            except CannotRecomputeError as error:
                if not self._strict:
                    return call(*args, **kwargs)
                raise ValueError(
                    "Each layer of `remat` must be one that can be computed "
                    "again; leave it out. Received: layer "
                    f"{path_of(layer)!r}, where {error}"
                ) from error
            return keras_internals.put_back(layer, results)

        return call_again
