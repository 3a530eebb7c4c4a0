"""Activations that are one operation in 16 bits, in serialized layers."""

from typing import Any

import keras

from tf_mixprec.layers import fused
from tf_mixprec.numerics.casting import has_16_bits

# By the name in `keras.activations`, and in a config.
_FUSED = {"gelu": fused.wide_gelu}


def fitting_activation(
    activation: Any, policy: keras.DTypePolicy | None
) -> Any:
    """Returns the serialized activation that fits a policy, if another does.

    Args:
        activation: What the config of a layer has: a name, or a function as
            Keras serializes it.
        policy: The policy that the layer will have; `None` if it stays.

    Returns:
        What the config is to have; `None` for what it has.
    """
    name = _name(activation)
    if policy is None or name not in _FUSED:
        return None
    if has_16_bits(policy.compute_dtype):
        return keras.saving.serialize_keras_object(_FUSED[name])
    return name


def _name(activation: Any) -> str | None:
    """Returns the name of a function of Keras's, or of ours in its place."""
    if isinstance(activation, str):
        return activation
    if not isinstance(activation, dict):
        return None
    for name, ours in _FUSED.items():
        registered = keras.saving.get_registered_name(ours)
        # Keras writes an activation's own name in another place than others'.
        if registered in (
            activation.get("registered_name"),
            activation.get("config"),
        ):
            return name
    return None
