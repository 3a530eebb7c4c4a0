"""Checks of the constructor's arguments, and the rule that they describe."""

import copy
import dataclasses
import difflib
from typing import Any

import keras

from tf_mixprec.loss_scale import DynamicLossScale
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.optimizers.step_options import StepOptions

# Keras once wrote these into the config of its own wrapper, so they are
# accepted with their default values and refused with any other.
_BASE_DEFAULTS = {
    "clipnorm": None,
    "clipvalue": None,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "global_clipnorm": None,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
    "use_ema": False,
    "weight_decay": None,
}

# What optimizers of tf.keras have in their configs and those of Keras 3 refuse.
_TF_KERAS_ONLY = ("is_legacy_optimizer", "jit_compile")

_OPTIONS = [field.name for field in dataclasses.fields(StepOptions)]

_RULE_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(DynamicLossScale)
}


def check_inner_optimizer(inner_optimizer: Any) -> None:
    """Raises unless this is a Keras optimizer that scales no loss itself."""
    if isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`inner_optimizer` must not be a LossScaleOptimizer, because the "
            "gradients would be divided by the loss scale twice. Use "
            "`mp.wrap(optimizer)`, which never wraps twice. Received: "
            f"inner_optimizer={inner_optimizer}"
        )
    if not isinstance(inner_optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner_optimizer` must be a `keras.optimizers.Optimizer` "
            "instance, because it makes the update. For a name or a config "
            "use `mp.wrap`. Received: "
            f"inner_optimizer={inner_optimizer!r}"
        )


def check_is_bool(
    name: str, value: Any, because: str = "it chooses what is traced"
) -> None:
    """Raises unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(
            f"`{name}` must be True or False, because {because}. Received: "
            f"{name}={value!r}"
        )


def check_keywords(keywords: dict[str, Any]) -> None:
    """Raises on a keyword that the wrapper does not take."""
    unknown = []
    for name, value in keywords.items():
        if name not in _BASE_DEFAULTS:
            unknown.append(name)
        elif value != _BASE_DEFAULTS[name]:
            raise ValueError(
                f"LossScaleOptimizer does not support `{name}`, because it "
                f"makes no update of its own. Instead, set `{name}` on the "
                f"`inner_optimizer`. Received: {name}={value!r}"
            )
    if unknown:
        raise ValueError(
            "LossScaleOptimizer does not support arguments: "
            f"`{'`, `'.join(unknown)}`. {_advice(unknown)} Received: "
            + ", ".join(f"{name}={keywords[name]!r}" for name in unknown)
        )


def _advice(unknown: list[str]) -> str:
    """Returns what to do about arguments that do not exist."""
    if "preset" in unknown:
        return "`preset` is an argument of `mp.wrap`."
    known = [*_RULE_DEFAULTS, *_OPTIONS, "dynamic", "master_weights", "name"]
    similar = [
        match
        for name in unknown
        for match in difflib.get_close_matches(name, known, n=1)
    ]
    if similar:
        return f"Did you mean `{'`, `'.join(similar)}`?"
    return (
        "Settings of the update belong to the `inner_optimizer`; this wrapper "
        f"has `{'`, `'.join(known)}`."
    )


def make_rule(
    dynamic: bool,
    dynamic_growth_steps: int,
    growth_interval: int | None,
    **numbers: Any,
) -> LossScaleRule:
    """Returns the rule that the constructor's arguments describe.

    Args:
        dynamic: Whether the scale moves.
        dynamic_growth_steps: Keras's name for `growth_interval`.
        growth_interval: The same, `None` if it was not given.
        **numbers: The other fields of `DynamicLossScale`.
    """
    check_is_bool("dynamic", dynamic)
    default = _RULE_DEFAULTS["growth_interval"]
    if growth_interval is None:
        growth_interval = dynamic_growth_steps
    elif dynamic_growth_steps not in (default, growth_interval):
        raise ValueError(
            "`growth_interval` and `dynamic_growth_steps` must agree, because "
            "they are two names for one number; give only one. Received: "
            f"growth_interval={growth_interval!r}, "
            f"dynamic_growth_steps={dynamic_growth_steps!r}"
        )
    numbers["growth_interval"] = growth_interval
    if dynamic:
        return DynamicLossScale(**numbers)
    idle = {
        name: value
        for name, value in numbers.items()
        if name != "initial_scale" and value != _RULE_DEFAULTS[name]
    }
    if idle:
        raise ValueError(
            "With `dynamic=False` only `initial_scale` must be given, because "
            "a fixed loss scale neither grows nor backs off. Received: "
            + ", ".join(f"{name}={value!r}" for name, value in idle.items())
        )
    return StaticLossScale(initial_scale=numbers["initial_scale"])


def deserialize_optimizer(
    config: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> keras.optimizers.Optimizer:
    """Returns the optimizer that a serialized config describes.

    Args:
        config: Of Keras 3 or of tf.keras. It is left as it is: Keras's own
            `from_config` writes into what it is given.
        custom_objects: Classes by name.
    """
    config = copy.deepcopy(config)
    for name in _TF_KERAS_ONLY:
        config["config"].pop(name, None)
    if config.get("module") is None:
        return keras.optimizers.deserialize(config, custom_objects)
    return keras.saving.deserialize_keras_object(
        config, custom_objects=custom_objects
    )
