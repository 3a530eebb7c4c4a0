"""A loaded or cloned model, compiled as the one that it comes from.

Keras compiles such a model itself, from the arguments of `model.compile`, which
cannot say what `mp.compile` adds. So the config of a model that was compiled by
`mp.compile` says so, and one method of `keras.Model` is extended, here and
nowhere else: `compile_from_config` of such a config calls `mp.compile`. For
others it does what it did.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.training.instance_methods import set_method

_KEY = "compiled_by"
_SAFE_SKIP = "safe_skip"
_AUTOCAST = "autocast"
_VALUE = "tf_mixprec"
_METHODS = ("compile", "compile_from_config", "get_compile_config")


def remember(model: Any, *, safe_skip: bool, autocast: str | None) -> None:
    """Makes the config of a model say that `mp.compile` compiled it.

    Not for a class with methods of its own for this: they would not know what
    to do with it.

    Args:
        model: The model.
        safe_skip: As it was given to `mp.compile`.
        autocast: Likewise.
    """
    more = {_SAFE_SKIP: safe_skip, _AUTOCAST: autocast}
    if all(is_of_keras(model, name) for name in _METHODS):
        set_method(
            model,
            "get_compile_config",
            lambda method: _marked(method, more),
        )


def is_of_keras(model: Any, name: str) -> bool:
    """Returns whether the class of a model has a method of Keras's."""
    return getattr(type(model), name) is getattr(keras.Model, name)


def _marked(
    method: Callable[..., Any], more: dict[str, Any]
) -> Callable[..., Any]:
    def get_compile_config() -> dict[str, Any]:
        return {**method(), _KEY: _VALUE, **more}

    return get_compile_config


def compile_with(compile: Callable[..., Any]) -> None:
    """Makes Keras compile with a function what was compiled with it before.

    Args:
        compile: Takes a model and the arguments of `model.compile`.
    """
    original = keras.Model.compile_from_config

    @functools.wraps(original)
    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        config = dict(config)
        if config.pop(_KEY, None) != _VALUE:
            original(self, config)
            return
        compile(self, **keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    keras.Model.compile_from_config = compile_from_config
