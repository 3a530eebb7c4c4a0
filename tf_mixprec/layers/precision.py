"""Any layer under another policy."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.layers.cast_to import CastTo
from tf_mixprec.layers.float32_inside import PolicyOutside
from tf_mixprec.layers.keras_internals import sublayers
from tf_mixprec.policies.policy import as_policy
from tf_mixprec.policies.scope import policy_scope


@keras.saving.register_keras_serializable("tf_mixprec")
class Precision(PolicyOutside, keras.layers.Wrapper):
    """Runs a layer under another policy than what is around it.

    The layer gets its inputs as they are and casts them to the compute dtype of
    its policy; what it returns is cast to what the policy of the wrapper says.
    Layers inside of it get the policy too, except those in a `Precision` of
    their own. Variables that exist already keep their dtype.

    Args:
        layer: The layer. A `keras.Model` will do.
        policy: Its policy: a `keras.DTypePolicy`, or a string for `mp.Policy`.
        **kwargs: Arguments of `keras.layers.Layer`; `dtype` is the policy
            outside, and defaults to the global one.

    Raises:
        TypeError: If `layer` is no layer.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> with mp.policy_scope("mixed_float16"):
    ...     layer = mp.layers.Precision(
    ...         keras.layers.Dense(1, kernel_initializer="ones"), "float32"
    ...     )
    >>> layer(np.array([[70000.0, -69999.0]])).numpy().tolist()
    [[1.0]]
    """

    def __init__(self, layer: Any, policy: Any, **kwargs: Any):
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(
                "`layer` must be a Keras layer, because only layers have a "
                f"dtype policy. Received: layer={layer!r}"
            )
        # Keras finds masks, `training` and shapes by the names of arguments.
        for name in ("call", "build"):
            self.__dict__[name] = _with_signature_of(
                getattr(layer, name), getattr(self, name)
            )
        super().__init__(layer, **kwargs)
        self.policy = _as_policy(policy)
        self.autocast = False
        self.supports_masking = layer.supports_masking
        _set_policy(layer, self.policy)

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Builds the layer; what it makes without `dtype=` gets the policy."""
        if not self.layer.built:
            with policy_scope(self.policy):
                self.layer.build(*args, **kwargs)
            self.layer.built = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer."""
        return self.layer(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the layer returns, in the dtype outside."""
        return self._outside(self.layer.compute_output_spec(*args, **kwargs))

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the layer returns."""
        return self.layer.compute_output_shape(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns the mask that the layer returns."""
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        policy = keras.dtype_policies.serialize(self.policy)
        return {**super().get_config(), "policy": policy}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "Precision":
        """Returns the wrapper of a config."""
        with policy_scope(_as_policy(config["policy"])):
            return super().from_config(dict(config), custom_objects)

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns what the layer is built with."""
        return self.layer.get_build_config()


def _as_policy(policy: Any) -> keras.DTypePolicy:
    if isinstance(policy, dict):
        return keras.dtype_policies.deserialize(policy)
    return as_policy(policy)


def _set_policy(layer: Any, policy: keras.DTypePolicy) -> None:
    if isinstance(layer, CastTo):  # the policy is what it is for
        return
    layer.dtype_policy = policy
    if not isinstance(layer, Precision):
        for sublayer in sublayers(layer):
            _set_policy(sublayer, policy)


def _with_signature_of(
    original: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped
