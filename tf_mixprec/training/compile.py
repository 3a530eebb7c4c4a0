"""`compile`: `model.compile` for models with 16-bit layers."""

from typing import Any

import keras

from tf_mixprec.numerics.casting import in_16_bits
from tf_mixprec.optimizers.arguments import check_is_bool
from tf_mixprec.policies import hardware
from tf_mixprec.training import recompiling
from tf_mixprec.training.compile_call import call_compile
from tf_mixprec.training.compile_call import check_arguments
from tf_mixprec.training.float32_ends import compute_in_float32
from tf_mixprec.training.keras_loop import make_train_without
from tf_mixprec.training.model_autocast import checked_dtype
from tf_mixprec.training.model_autocast import put_under_autocast
from tf_mixprec.training.model_autocast import take_from_autocast
from tf_mixprec.training.optimizer_choice import OptimizerChoice
from tf_mixprec.training.penalties import widen_regularizers
from tf_mixprec.training.report import CompileReport
from tf_mixprec.training.safe_skip import leave_no_trace
from tf_mixprec.training.safe_skip import leave_traces
from tf_mixprec.training.sixteen_bits import SixteenBitLayers
from tf_mixprec.training.sixteen_bits import path_of


def compile(
    model: keras.Model,
    optimizer: Any = "rmsprop",
    loss: Any = None,
    loss_weights: Any = None,
    metrics: Any = None,
    weighted_metrics: Any = None,
    run_eagerly: bool = False,
    steps_per_execution: int = 1,
    jit_compile: bool | str = "auto",
    *,
    safe_skip: bool = False,
    autocast: str | None = None,
    **kwargs: Any,
) -> CompileReport:
    """Compiles a model for training, as `model.compile`, in its precision.

    ```text
    a layer in float16       the optimizer scales the loss, dynamically
    one in bfloat16, none    the optimizer skips steps that are not finite
      in float16
    16-bit variables         float32 masters; their regularizers act on these
    any 16-bit layer         losses and metrics get predictions in float32;
                             added losses and regularizers are float32
    none                     exactly what `model.compile` does
    ```

    Layers are those that the model has now, at any depth: build a model first
    that makes layers in `build`. A model that is loaded from a file or cloned
    is compiled in the same way again. Predictions stay in the dtype of the
    model.

    A model whose own `compile` takes other arguments, such as the two
    optimizers of a GAN, gets every optimizer in them wrapped, in dicts and
    lists as well; its `train_step` must then scale each loss:
    `tape.gradient(self.g_optimizer.scale_loss(loss), ...)`. Names such as
    `"adam"` are left alone there.

    Args:
        model: The model. Its layers change in one thing: regularizers of 16-bit
            outputs and weights become `WidenedRegularizer`, and of weights
            with masters `MasterRegularizer`.
        optimizer: An optimizer, a name or a config. One that is wrapped already
            is kept; Keras's `LossScaleOptimizer` is converted.
        loss: As in `model.compile`.
        loss_weights: As in `model.compile`.
        metrics: As in `model.compile`.
        weighted_metrics: As in `model.compile`.
        run_eagerly: As in `model.compile`.
        steps_per_execution: As in `model.compile`.
        jit_compile: As in `model.compile`, except that `"auto"` is `False` for
            bfloat16 where no GPU is visible: oneDNN multiplies it faster than
            float32, XLA does not.
        safe_skip: Whether a skipped step of `fit` leaves no trace: moving
            statistics, loss and metrics are as before it too, and a model in
            float32 skips steps as well. Costs a copy of what is not trained.
            Defaults to false.
        autocast: `"bfloat16"`, `"float16"`, or `"auto"` for what
            `mp.recommended_policy` computes in: `fit`, `evaluate` and
            `predict` then run the operations of a model in float32 under
            `mp.autocast`. For raw TensorFlow in `call`, and layers without a
            dtype policy of their own. Calls of the model elsewhere, and what
            `model.export` writes, stay float32. Defaults to `None`, for none,
            as `"float32"` is.
        **kwargs: Other arguments of the model's own `compile`.

    Returns:
        What was done, and why.

    Raises:
        TypeError: If `model` is no Keras model, if the model's own `compile`
            does not take an argument, or if `optimizer` is none.
        ValueError: If `auto_scale_loss` is given, if `jit_compile` is no
            choice, `safe_skip` where no optimizer of ours can skip a step, or
            `autocast` where a layer is in 16 bits.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> with mp.policy_scope("mixed_float16"):
    ...     layers = [keras.layers.Dense(8), keras.layers.Dense(10)]
    >>> model = keras.Sequential([keras.Input((4,)), *layers])
    >>> report = mp.compile(
    ...     model,
    ...     "adam",
    ...     "sparse_categorical_crossentropy",
    ...     metrics=["sparse_top_k_categorical_accuracy"],
    ... )
    >>> report.optimizers, len(report.float16_layers)
    ({'optimizer': 'wrapped'}, 2)
    """
    check_arguments(model, kwargs)
    check_is_bool("safe_skip", safe_skip)
    found = SixteenBitLayers.of(model)
    cast_to = checked_dtype(model, autocast, found)
    gradients = found.with_model(model, cast_to)
    choice = OptimizerChoice(gradients, wraps_all=safe_skip)
    jit_compile, jit_reasons = _chosen_jit_compile(jit_compile, gradients)
    make_train_without(model)
    take_from_autocast(model)
    call_compile(
        model,
        choice,
        {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
        },
        kwargs,
    )
    widened: tuple[str, ...] = ()
    if found:
        widened = widen_regularizers(
            [*found.float16, *found.bfloat16], on_masters=choice.keeps_masters
        )
        compute_in_float32(model)
    if safe_skip:
        leave_no_trace(model)
    else:
        leave_traces(model)
    if cast_to:
        put_under_autocast(model, cast_to)
    if gradients or safe_skip:
        recompiling.remember(model, safe_skip=safe_skip, autocast=autocast)
    return CompileReport(
        optimizers=choice.done,
        float16_layers=_paths(found.float16),
        bfloat16_layers=_paths(found.bfloat16),
        jit_compile=model.jit_compile,
        metrics_cast=bool(found),
        safe_skip=safe_skip,
        autocast=cast_to,
        widened_regularizers=widened,
        reasons=(
            *choice.reasons(),
            *_reasons_of_masters(model, choice),
            *jit_reasons,
        ),
    )


def _reasons_of_masters(model: Any, choice: OptimizerChoice) -> list[str]:
    """Returns what becomes of 16-bit variables, one line or none."""
    if not in_16_bits(model.trainable_variables):
        return []
    if choice.keeps_masters:
        return ["Variables in 16 bits are updated in float32."]
    return [
        "Variables in 16 bits are updated in 16 bits: small updates vanish."
    ]


def _paths(layers: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns the paths of layers, without models, which only pass on."""
    return tuple(
        path_of(layer) for layer in layers if not isinstance(layer, keras.Model)
    )


def _chosen_jit_compile(
    jit_compile: bool | str, found: SixteenBitLayers
) -> tuple[bool | str, list[str]]:
    """Returns the argument for Keras, and why it is not what was given."""
    if jit_compile not in (True, False, None, "auto"):
        raise ValueError(
            "`jit_compile` must be True, False or 'auto', because it says "
            "whether XLA compiles the step. Received: "
            f"jit_compile={jit_compile!r}"
        )
    if (
        jit_compile != "auto"
        or not found.bfloat16
        or not hardware.runs_on_cpu()
    ):
        return jit_compile, []
    reason = (
        "bfloat16 on a CPU: oneDNN multiplies it faster than float32, XLA does "
        "not."
    )
    return False, [reason]


recompiling.compile_with(compile)
