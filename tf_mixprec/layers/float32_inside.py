"""Float32 inside, the policy outside.

A mixin in front of a layer of Keras's. Keras casts what goes into a layer to
`compute_dtype`, and reads variables in it; so a `compute_dtype` that is wider
than the policy's makes Keras's own code compute in float32, and what it returns
is cast to what the policy says.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.layers.widened_regularizer import WidenedRegularizer
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies.output_dtypes import cast
from tf_mixprec.policies.policy import Policy


def widened_dtype(dtype: str) -> str:
    """Returns float32 for 16-bit floats, and any other dtype as it is."""
    return "float32" if has_16_bits(dtype) else dtype


def widened_tensors(structure: Any, dtype: str) -> Any:
    """Returns a structure with its 16-bit tensors in a dtype.

    Args:
        structure: Nested lists, tuples and dicts of tensors and anything else.
        dtype: String.
    """

    def widened(x: Any) -> Any:
        if not keras.ops.is_tensor(x):
            return x
        own = keras.backend.standardize_dtype(x.dtype)
        return cast(x, dtype) if has_16_bits(own) else x

    return keras.tree.map_structure(widened, structure)


def _policy_outside(call: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps`: Keras reads the names of the arguments from the signature.
    @functools.wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._inside((args, kwargs))
        return self._outside(call(self, *args, **kwargs))

    return wrapped


class PolicyOutside(keras.layers.Layer):
    """Returns what the policy says, whatever `call` computes in."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Not in `__call__`, which wrappers like `TimeDistributed` pass by.
        if cls.call is not keras.layers.Layer.call:
            cls.call = _policy_outside(cls.call)

    @property
    def output_dtype(self) -> str:
        """The dtype of floating-point outputs."""
        policy = self._policy
        if isinstance(policy, Policy):
            return policy.output_dtype
        return policy.compute_dtype

    @property
    def activity_regularizer(self) -> WidenedRegularizer | None:
        """The regularizer of outputs, which it gets in float32."""
        return self._widened_regularizer

    @activity_regularizer.setter
    def activity_regularizer(self, regularizer: Any) -> None:
        if regularizer is not None:
            regularizer = WidenedRegularizer(regularizer)
        self._widened_regularizer = regularizer

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns symbolic outputs in the dtype of real ones."""
        return self._outside(super().compute_output_spec(*args, **kwargs))

    @property
    def _policy(self) -> keras.DTypePolicy:
        policy = self.dtype_policy
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return policy[self.path] if self.path else policy.default_policy
        return policy

    @property
    def _computes_in_16_bits(self) -> bool:
        return has_16_bits(self._policy.compute_dtype)

    def _inside(self, structure: Any) -> Any:
        return structure

    def _outside(self, structure: Any) -> Any:
        return cast(structure, self.output_dtype)


class Float32Inside(PolicyOutside):
    """Computes in at least float32, and returns what the policy says."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer."""
        # Before Keras does, since its older versions drop the mask then.
        args, kwargs = self._inside((args, kwargs))
        return super().__call__(*args, **kwargs)

    @property
    def compute_dtype(self) -> str:
        """The dtype inside: at least float32; that of the policy if wider."""
        return widened_dtype(super().compute_dtype)

    def _inside(self, structure: Any) -> Any:
        return widened_tensors(structure, self.compute_dtype)
