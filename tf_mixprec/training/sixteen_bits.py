"""Which layers of a model work in 16 bits."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.layers.float32_inside import PolicyOutside
from tf_mixprec.training import keras_internals


@dataclasses.dataclass(frozen=True, kw_only=True)
class SixteenBitLayers:
    """The layers of a model that compute in 16 bits, or return them.

    Args:
        float16: The layers in float16.
        bfloat16: The layers in bfloat16.
    """

    float16: tuple[Any, ...]
    bfloat16: tuple[Any, ...]

    @classmethod
    def of(cls, model: Any) -> "SixteenBitLayers":
        """Returns those of a model, itself and sublayers included.

        A model counts, since a cast at its door is one for gradients as well.
        """
        dtypes = [
            (layer, set(_dtypes(layer)))
            for layer in keras_internals.all_layers(model)
            if not isinstance(layer, keras.layers.InputLayer)
        ]
        return cls(
            float16=tuple(each for each, found in dtypes if "float16" in found),
            bfloat16=tuple(
                each for each, found in dtypes if "bfloat16" in found
            ),
        )

    def with_model(self, model: Any, dtype: str | None) -> "SixteenBitLayers":
        """Returns these, and a model that is under autocast.

        Args:
            model: The model.
            dtype: `"float16"`, `"bfloat16"`, or `None` for no autocast.
        """
        if dtype is None:
            return self
        more = (*getattr(self, dtype), model)
        return dataclasses.replace(self, **{dtype: more})

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.float16 or self.bfloat16)


def path_of(layer: Any) -> str:
    """Returns the path of a layer, or its name while it is not built."""
    return layer.path or layer.name


def _dtypes(layer: Any) -> Iterator[str]:
    """Yields what a layer computes in and what it returns.

    Both round gradients: the gradient of a cast to float16 is in float16.
    """
    yield layer.compute_dtype
    if isinstance(layer, PolicyOutside):  # its inside is not what policies say
        yield layer.output_dtype
        return
    for policy in _policies(layer):
        yield policy.compute_dtype
        yield getattr(policy, "output_dtype", policy.compute_dtype)


def _policies(layer: Any) -> list[keras.DTypePolicy]:
    """Returns the policies that a layer has or, by its path, may get."""
    policy = layer.dtype_policy
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return [policy]
    if layer.path:
        return [policy[layer.path]]
    return [policy.default_policy, *policy.values()]
