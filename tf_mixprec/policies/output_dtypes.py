"""What a policy with an output dtype needs of Keras.

Keras asks a policy how to convert inputs but never what to return, and it loads
a layer with the name of the policy that was saved instead of the policy. No
method of a layer can change either from outside, so two methods of
`keras.Operation` are extended here, and nowhere else:

- `from_config`, when this module is imported: a saved `Policy` stays one.
- `__call__`, when the first policy with an output dtype of its own is made.

For layers with other policies both do what they did.
"""

import functools
import threading
from typing import Any

import keras


class _Thread(threading.local):
    """The policies of the layers that are being called in this thread."""

    def __init__(self) -> None:
        self.active: list[Any] = []


_thread = _Thread()


def keep_policies(policy_class: type) -> None:
    """Makes `from_config` of layers keep policies of a class.

    Args:
        policy_class: The class. Others follow Keras.
    """
    original = keras.Operation.from_config.__func__

    @functools.wraps(original)
    def from_config(cls: type, config: dict[str, Any]) -> Any:
        dtype = config.get("dtype")
        if isinstance(dtype, dict):
            policy = keras.dtype_policies.deserialize(dtype)
            if isinstance(policy, policy_class):
                config = {**config, "dtype": policy}
        return original(cls, config)

    keras.Operation.from_config = classmethod(from_config)


@functools.cache
def cast_outputs_of_layers() -> None:
    """Makes layers return what their policy says.

    A layer inside of another one with the same policy returns what it computes:
    the cell in a recurrent layer, the projections in an attention layer. In a
    model, which only passes on, each layer counts by itself.
    """
    original = keras.Operation.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        policy = getattr(self, "dtype_policy", None)
        dtype = getattr(policy, "_output_dtype", None)
        if dtype is None or policy in _thread.active:
            return original(self, *args, **kwargs)
        if isinstance(self, keras.Model):
            return cast(original(self, *args, **kwargs), dtype)
        _thread.active.append(policy)
        try:
            return cast(original(self, *args, **kwargs), dtype)
        finally:
            _thread.active.pop()

    keras.Operation.__call__ = call


def cast(structure: Any, dtype: str) -> Any:
    """Returns a structure with its floating-point tensors in a dtype.

    Args:
        structure: Nested lists, tuples and dicts of tensors, symbolic tensors
            and anything else, which is left alone.
        dtype: String.
    """
    return keras.tree.map_structure(lambda x: _cast_one(x, dtype), structure)


def _cast_one(x: Any, dtype: str) -> Any:
    symbolic = isinstance(x, keras.KerasTensor)
    if not symbolic and not keras.ops.is_tensor(x):
        return x
    own = keras.backend.standardize_dtype(x.dtype)
    if own == dtype or not keras.backend.is_float_dtype(own):
        return x
    if symbolic:
        # Not `ops.cast`, which would be one more operation in the model.
        result = keras.KerasTensor(
            x.shape, dtype=dtype, sparse=x.sparse, ragged=x.ragged
        )
    else:
        result = keras.ops.cast(x, dtype)
    mask = getattr(x, "_keras_mask", None)
    if mask is not None:
        result._keras_mask = mask
    return result
