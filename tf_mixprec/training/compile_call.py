"""The call of the `compile` that a model has, which need not be Keras's."""

import inspect
import warnings
from typing import Any

import keras

from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.training.optimizer_choice import OptimizerChoice
from tf_mixprec.training.recompiling import is_of_keras

# Of `model.compile`: what is passed on to another `compile` only if it differs.
_DEFAULTS = {
    "optimizer": "rmsprop",
    "loss": None,
    "loss_weights": None,
    "metrics": None,
    "weighted_metrics": None,
    "run_eagerly": False,
    "steps_per_execution": 1,
    "jit_compile": "auto",
}


def check_arguments(model: Any, extra: dict[str, Any]) -> None:
    """Rejects what is no model, and a second choice on loss scaling."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`, because its layers say which "
            f"precision to compile for. Received: model={model!r}"
        )
    if "auto_scale_loss" in extra:
        raise ValueError(
            "`auto_scale_loss` must not be given, because the layers decide "
            "whether the loss is scaled; to scale no loss, use "
            "`model.compile`. Received: "
            f"auto_scale_loss={extra['auto_scale_loss']!r}"
        )


def call_compile(
    model: Any,
    choice: OptimizerChoice,
    arguments: dict[str, Any],
    extra: dict[str, Any],
) -> None:
    """Calls `model.compile` with the optimizers chosen.

    Args:
        model: The model.
        choice: Chooses the optimizers.
        arguments: Those of Keras's `compile`, all of them.
        extra: Other arguments.
    """
    if is_of_keras(model, "compile"):
        optimizer = choice.chosen("optimizer", arguments["optimizer"])
        model.compile(
            **{**arguments, "optimizer": optimizer, "auto_scale_loss": False},
            **extra,
        )
        return
    arguments = _taken(model, arguments)
    if "optimizer" in arguments:
        arguments["optimizer"] = choice.chosen(
            "optimizer", arguments["optimizer"]
        )
    extra = {k: choice.chosen_inside(k, v) for k, v in extra.items()}
    jit_compile = arguments.pop("jit_compile", "auto")
    model.compile(**arguments, **extra)
    if jit_compile != "auto":
        model.jit_compile = jit_compile
    if choice.float16:
        _warn_of_bare_optimizers(model)


def _taken(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that the model's own `compile` is to get."""
    parameters = inspect.signature(model.compile).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    taken = {}
    for name, value in arguments.items():
        default = _DEFAULTS[name]
        is_given = type(value) is not type(default) or value != default
        if name == "optimizer" and name in parameters and not is_given:
            own = parameters[name].default
            taken[name] = value if own is inspect.Parameter.empty else own
        elif is_given:
            if name not in (*parameters, "jit_compile") and not takes_all:
                raise TypeError(
                    f"`{name}` must be an argument of the model's own "
                    "`compile`, because that is what compiles it; it takes "
                    f"{', '.join(parameters)}. Received: {name}={value!r}"
                )
            taken[name] = value
    return taken


def _warn_of_bare_optimizers(model: Any) -> None:
    """Warns of optimizers that the model's own `compile` has made itself."""
    names = [
        name
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer)
        and not isinstance(value, keras.optimizers.LossScaleOptimizer)
        # Keras always makes one; a `train_step` of one's own may not use it.
        and (name != "optimizer" or is_of_keras(model, "train_step"))
    ]
    if names:
        warnings.warn(
            f"`{type(model).__name__}.compile` made optimizers that do not "
            "scale the loss, so that float16 gradients below 6e-8 are zero: "
            f"{', '.join(names)}. Wrap them there with `mp.wrap`, or take them "
            "as arguments.",
            LossScaleWarning,
            stacklevel=4,  # who called `mp.compile`
        )
