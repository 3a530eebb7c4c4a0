"""Layers of a model in training that are moved to float32, and back."""

from collections.abc import Iterable
from typing import Any

import keras

from tf_mixprec.conversion.keras_internals import forget_traces
from tf_mixprec.conversion.plan import Decision
from tf_mixprec.conversion.plan import own_children
from tf_mixprec.conversion.rebuild import set_policy
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.diagnostics.tune.units import called_by_code
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import Policy
from tf_mixprec.policies.policy import keras_policy
from tf_mixprec.training import keras_internals


class LayerMoves:
    """Gives layers the policy float32, and the one they had.

    Variables keep their dtype. What code of the user's calls goes on returning
    16 bits, which that code may count on; a layer with such code is moved as a
    whole.

    Args:
        model: The model.

    Attributes:
        moved: By path, what the layers that are in float32 had before.
    """

    def __init__(self, model: Any):
        self._model = model
        self._layers = {
            each.path: each.layer
            for each in tapped_layers(model)
            if isinstance(each.layer, keras.Layer)
            and not isinstance(each.layer, keras.Model)
        }
        self._in_code = {id(layer) for layer in called_by_code(model)}
        self.moved: dict[str, list[tuple[Any, Any]]] = {}

    def can_move(self, path: str) -> bool:
        """Returns whether a layer is in 16 bits, and can be in float32.

        Args:
            path: The path of the layer.
        """
        layer = self._layers.get(path)
        if layer is None or path in self.moved:
            return False
        policy = layer.dtype_policy
        if policy.quantization_mode is not None:
            return False
        if has_16_bits(policy.compute_dtype):
            return True
        # In code it must go on returning 16 bits, as it does.
        returns = _output_dtype(policy)
        return has_16_bits(returns) and id(layer) not in self._in_code

    def to_float32(self, paths: Iterable[str]) -> None:
        """Moves layers to float32.

        Args:
            paths: Of layers that can be moved.
        """
        for path in paths:
            layer = self._layers[path]
            layers = keras_internals.all_layers(layer)
            self.moved[path] = [(each, each.dtype_policy) for each in layers]
            _widen(layer, keeps_output=id(layer) in self._in_code)

    def back(self, paths: Iterable[str]) -> None:
        """Gives layers the policies that they had.

        Args:
            paths: Of layers that were moved.
        """
        for path in paths:
            for layer, policy in self.moved.pop(path):
                layer.dtype_policy = policy

    def retrace(self) -> None:
        """Makes the next steps those of the model as it is now."""
        forget_traces(self._model)
        self._model.make_train_function(force=True)


def _output_dtype(policy: Any) -> str:
    return getattr(policy, "output_dtype", policy.compute_dtype)


def _widen(layer: Any, *, keeps_output: bool) -> None:
    former = layer.dtype_policy
    output = _output_dtype(former) if keeps_output else "float32"
    policy = keras_policy(Policy("float32", former.variable_dtype, output))
    decision = Decision(
        path="",
        layer=layer,
        kind="other",
        policy=policy,
        layer_class=type(layer),
        fallback=policy,
    )
    set_policy(decision, layer)
    for child in own_children(layer):  # of a layer with code of its own
        if not isinstance(child, keras.layers.InputLayer):
            _widen(child, keeps_output=False)
