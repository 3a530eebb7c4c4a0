"""Wrong use of a training step, caught when it happens."""

from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.optimizers import keras_internals as optimizer_internals
from tf_mixprec.optimizers.shared_loss_scale import SharingOptimizer
from tf_mixprec.training import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def check_backend() -> None:
    """Raises unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`mp.TrainStep` must be used with the TensorFlow backend of Keras, "
            "because it traces functions and knows its strategies; `mp.wrap` "
            "works on the others. Received: the backend "
            f"{keras.backend.backend()!r}"
        )


def check_model(model: Any) -> None:
    """Raises unless this is a Keras model."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`, because its layers say which "
            f"precision to train in. Received: model={model!r}"
        )


def check_accumulation_steps(steps: Any) -> None:
    """Raises unless batches can be cut into so many parts."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(
            "`accumulation_steps` must be an int, because a batch is cut into "
            f"that many parts. Received: accumulation_steps={steps!r}"
        )
    if steps < 1:
        raise ValueError(
            "`accumulation_steps` must be at least 1, because a batch is cut "
            "into that many parts; 1 leaves it whole. Received: "
            f"accumulation_steps={steps!r}"
        )


def check_no_loss(loss: Any, metrics: Any, weighted_metrics: Any) -> None:
    """Raises if losses or metrics are given that would not be used."""
    if loss is not None:
        raise ValueError(
            "`loss` must not be given where a subclass overrides "
            "`compute_loss`, because that computes the loss. Received: "
            f"loss={loss!r}"
        )
    if metrics or weighted_metrics:
        raise ValueError(
            "`metrics` must not be given where a subclass overrides "
            "`compute_loss`, because they need predictions and it returns "
            "none; return `(loss, {'name': value})` to log a value. Received: "
            f"metrics={metrics!r}, weighted_metrics={weighted_metrics!r}"
        )


def check_loss_scales(loss_scales: Any, has_hook: bool, optimizer: Any) -> None:
    """Raises unless several losses and their scales fit together."""
    if loss_scales is None:
        return
    if not has_hook:
        raise ValueError(
            "`loss_scales` must be given to a subclass that overrides "
            "`compute_loss`, because that returns several losses. Received: "
            f"loss_scales={loss_scales!r}"
        )
    if not isinstance(loss_scales, Mapping) or not loss_scales:
        raise TypeError(
            "`loss_scales` must be a dict with a preset, a rule or None for "
            "each name of a loss, because losses are known by name. Received: "
            f"loss_scales={loss_scales!r}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`optimizer` must not be wrapped where `loss_scales` are given, "
            "because the losses have scales of their own; give "
            f"`optimizer.inner_optimizer`. Received: optimizer={optimizer!r}"
        )


def check_loss_names(losses: Any, names: list[str]) -> None:
    """Raises unless losses are given by name where they have scales."""
    if bool(names) != isinstance(losses, dict) or (
        names and set(losses) != set(names)
    ):
        if names:
            raise ValueError(
                f"`compute_loss` must return a dict with {', '.join(names)}, "
                "because `loss_scales` has a scale for each of these. "
                f"Received: {losses!r}"
            )
        raise ValueError(
            "`compute_loss` must return one loss, because the step has one "
            "loss scale; for a dict of losses give it a scale for each: "
            "`loss_scales={'name': None, ...}`. Received: "
            f"{losses!r}"
        )


def checked_strategy(model: Any, strategy: Any) -> Any:
    """Returns the strategy of the model, raises if another one is given."""
    own = model.distribute_strategy
    if strategy is not None and strategy is not own:
        raise ValueError(
            "`strategy` must be the one in whose scope the model was made, "
            "because each replica needs a copy of every variable; put "
            "`with strategy.scope():` around the making of the model. "
            f"Received: strategy={strategy!r}, the model's is {own!r}"
        )
    return own


def check_scales_once(optimizer: Any) -> None:
    """Raises if Keras's own accumulation would stand below ours."""
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise ValueError(
            "`gradient_accumulation_steps` must not be set on the optimizer, "
            "because the step accumulates itself: give `mp.TrainStep` "
            "`accumulation_steps`, and batches that many times larger. "
            f"Received: gradient_accumulation_steps={steps!r}"
        )


def check_scale_is_not_shared(optimizer: Any) -> None:
    """Raises if `mp.fit` would never move the loss scale."""
    if isinstance(optimizer, SharingOptimizer):
        raise ValueError(
            "A step whose loss scale is shared must be made in a loop of your "
            "own, because `shared.update()` moves the scale once a round, "
            "after the step of each optimizer; for `mp.fit` give an optimizer "
            f"with a scale of its own. Received: optimizer={optimizer!r}"
        )


def check_is_current(step: Any) -> None:
    """Raises if the model is not compiled for the step any more."""
    if not step.is_current:
        raise RuntimeError(
            "A model must not be compiled anew after its `mp.TrainStep` is "
            "made, nor have two of them, because the step uses its losses and "
            "metrics. Make a new step; to train with several losses override "
            "`compute_loss`. Received: a model with the optimizer "
            f"{step.model.optimizer!r}"
        )


def check_variables(optimizer: Any, model: Any) -> None:
    """Raises if the optimizer does not know what it is to train."""
    known = {
        optimizer_internals.key_of(optimizer, variable)
        for variable in optimizer_internals.trainable_variables(optimizer)
    }
    unknown = [
        variable.path
        for variable in model.trainable_variables
        if optimizer_internals.key_of(optimizer, variable) not in known
    ]
    if not model.trainable_variables:
        raise ValueError(
            "The model must have a trainable variable, because a step updates "
            "it; set `layer.trainable = True` before the step is made. "
            f"Received: {model.name!r} without any"
        )
    if unknown:
        raise ValueError(
            "The optimizer must be built on every trainable variable of the "
            "model, because it has slots for each; give a new optimizer, or "
            "build it on all of them before some are frozen. Received: an "
            f"optimizer that does not know {', '.join(unknown)}"
        )


def check_target(model: Any, y: Any) -> None:
    """Raises if a compiled loss has nothing to compare with."""
    if keras_internals.has_loss(model) and y is None:
        raise ValueError(
            "`y` must be given, because the loss compares it with what the "
            "model predicts: `step(x, y)`, and `mp.fit(step, (x, y))` with a "
            "tuple. Received: y=None"
        )


def check_has_loss(model: Any) -> None:
    """Raises if nothing says what to minimize; to be called after the model."""
    if not keras_internals.has_loss(model) and not model.losses:
        raise ValueError(
            "`loss` must be given to `mp.TrainStep`, or `compute_loss` be "
            "overridden, because no layer of the model adds a loss. Received: "
            "loss=None"
        )


def check_is_scalar(loss: Tensor) -> None:
    """Raises unless a loss is one float."""
    if loss.shape.rank != 0 or not tf.as_dtype(loss.dtype).is_floating:
        raise ValueError(
            "A loss must be a scalar float tensor, because its gradient is "
            "taken; average over the examples, in float32. Received: shape="
            f"{tuple(loss.shape)}, dtype={dtype_name(loss)!r}"
        )


def check_float16_is_scaled(loss: Tensor, optimizer: Any) -> None:
    """Raises if a loss in float16 is not scaled."""
    unscaled = optimizer.rule == StaticLossScale(initial_scale=1.0)
    if dtype_name(loss) == "float16" and unscaled:
        raise ValueError(
            "A loss that is computed in float16 must be scaled, because "
            "gradients below 6e-8 are zero there. No layer of the model "
            "computes in float16, so the optimizer does not scale: give "
            "`mp.wrap(optimizer)`, or compute the loss in float32. Received: "
            "a float16 loss"
        )


def check_means(means: Any) -> None:
    """Raises unless this is a dict of scalars."""
    taken = {"loss", "grad_norm", "loss_scale", "skipped"}
    if not isinstance(means, dict) or taken & set(means):
        raise ValueError(
            "`compute_loss` must return a loss, or a loss and a dict of "
            f"scalars without the names {', '.join(sorted(taken))}, because "
            f"they are logged beside these. Received: {means!r}"
        )
    for name, value in means.items():
        if tf.convert_to_tensor(value).shape.rank != 0:
            raise ValueError(
                "What `compute_loss` returns beside the loss must be scalars, "
                "because it is averaged over steps. Received: "
                f"{name}={value!r}"
            )


SCALES_ONCE = (
    "`compute_loss` must return the loss itself, because the step multiplies "
    "it by the loss scale, and divides the gradients by it once. To keep an "
    "inner gradient, as of a gradient penalty, from vanishing in float16, "
    "multiply what it is taken of by a constant and divide it by the same."
)
