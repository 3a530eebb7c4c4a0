"""The operations of a model in 16 bits while it is trained, tested or predicts.

The layers stay float32: `mp.autocast` rewrites what the model's `call` traces.
Losses and metrics are outside of it, and so in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.autocast import autocast
from tf_mixprec.autocast.autocast import CHOICES
from tf_mixprec.autocast.autocast import DTYPES
from tf_mixprec.autocast.autocast import check_backend
from tf_mixprec.autocast.autocast import resolved
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import cover_method
from tf_mixprec.training.instance_methods import covered
from tf_mixprec.training.instance_methods import original_method
from tf_mixprec.training.sixteen_bits import SixteenBitLayers

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_STEPS = ("train_step", "test_step", "predict_step")
_KEPT = "_tf_mixprec_autocast"


def checked_dtype(
    model: Any, dtype: str | None, found: SixteenBitLayers
) -> str | None:
    """Returns the dtype that a model is to be under autocast in.

    Args:
        model: The model.
        dtype: `"bfloat16"`, `"float16"`, `"float32"`, `"auto"` or `None`.
        found: The layers of the model that work in 16 bits.

    Returns:
        `"bfloat16"`, `"float16"`, or `None` for no autocast.
    """
    if dtype is None:
        return None
    check_backend()
    if dtype not in CHOICES:
        raise ValueError(
            f"`autocast` must be one of {CHOICES}, or None for no autocast, "
            "because it says which 16-bit float the calls of the model are "
            f"computed in. Received: autocast={dtype!r}"
        )
    computes_in = resolved(dtype)
    if computes_in not in DTYPES:
        return None
    if found:
        raise ValueError(
            "`autocast` must be given for a model whose layers are float32, "
            "because layers in 16 bits cast by themselves; leave it out. "
            f"Received: autocast={dtype!r}, and a model with layers in 16 bits"
        )
    _check_merges_nothing(model)
    return computes_in


def _check_merges_nothing(model: Any) -> None:
    """Rejects layers that ask other replicas while they are called."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return
    for layer in keras_internals.all_layers(model):
        if getattr(layer, "synchronized", False):
            raise ValueError(
                "`autocast` must be given for a model whose layers do not ask "
                "other replicas, because a rewritten function cannot; set "
                "`synchronized=False`, or use a dtype policy in the place of "
                f"autocast. Received: layer {layer.name!r} with "
                "synchronized=True"
            )


class ModelAutocast:
    """Puts the calls of a model under autocast, while something runs.

    Args:
        model: The model, in float32.
        dtype: `"bfloat16"` or `"float16"`.
    """

    def __init__(self, model: Any, dtype: str):
        self._model = model
        self._dtype = dtype

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function during which the model is under autocast.

        Args:
            function: Any that calls the model.
        """

        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            with covered([self._model], "call", self._cast):
                return function(*args, **kwargs)

        return with_autocast

    def _cast(self, model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def cast_call(*args: Any, **kwargs: Any) -> Any:
            given = tf.nest.flatten((args, kwargs))
            places = [i for i, each in enumerate(given) if tf.is_tensor(each)]

            def forward(*tensors: Any) -> Any:
                inside = list(given)
                for place, tensor in zip(places, tensors, strict=True):
                    keras_internals.copy_mask(given[place], tensor)
                    inside[place] = tensor
                some, named = tf.nest.pack_sequence_as((args, kwargs), inside)
                return keras_internals.taken(model, call(*some, **named))

            function = autocast(forward, self._dtype)
            results = function(*[given[i] for i in places])
            return keras_internals.put_back(model, results)

        return cast_call


def put_under_autocast(model: Any, dtype: str) -> None:
    """Makes `fit`, `evaluate` and `predict` of a model use autocast.

    Until it is compiled anew.

    Args:
        model: The compiled model.
        dtype: `"bfloat16"` or `"float16"`.
    """
    tracker = keras_internals.loss_tracker(model)
    scope = ModelAutocast(model, dtype)

    def cover(name: str) -> Callable[[], None]:
        def replacement(method: Callable[..., Any]) -> Callable[..., Any]:
            under = scope.around(method)

            @functools.wraps(method)
            def step(*args: Any, **kwargs: Any) -> Any:
                is_current = keras_internals.loss_tracker(model) is tracker
                return (under if is_current else method)(*args, **kwargs)

            step._tf_mixprec_original = original_method(  # type: ignore[attr-defined]
                model, name
            )
            return step

        return cover_method(model, name, replacement)

    vars(model)[_KEPT] = [cover(name) for name in _STEPS]


def is_under_autocast(model: Any) -> bool:
    """Returns whether the steps of a model are covered.

    Args:
        model: The model.
    """
    return _KEPT in vars(model)


def take_from_autocast(model: Any) -> None:
    """Gives a model back the steps that `put_under_autocast` covered."""
    for uncover in vars(model).pop(_KEPT, []):
        uncover()
