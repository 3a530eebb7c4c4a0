"""The optimizer wrapper that scales the loss and skips non-finite steps."""

import dataclasses
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec import numerics
from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.optimizers import arguments
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers import stacking
from tf_mixprec.optimizers.master_weight_optimizer import MasterWeightOptimizer
from tf_mixprec.optimizers.step import SkippingStep
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.tracing import as_written


@keras.saving.register_keras_serializable(package="tf_mixprec")
class LossScaleOptimizer(SkippingStep):
    """Wraps an optimizer so that 16-bit gradients neither vanish nor poison.

    ```text
    scale_loss:  loss in float32 * loss_scale
    apply:       gradients / loss_scale
                 if one is inf or nan: skip the step, the scale backs off
                 else: the inner optimizer's step; the scale may grow
    ```

    It is a `keras.optimizers.LossScaleOptimizer`, so `model.compile` takes it
    as it is, and it is transparent: `learning_rate`, `iterations`,
    `weight_decay`, `clipnorm`, `use_ema`, `momentum` and whatever else the
    inner optimizer has are read and set through it. `mp.wrap` makes one from
    an optimizer, a name or a config.

    A skipped step leaves the inner optimizer as it was: weights, slots,
    `iterations`, learning-rate schedule, moving average and accumulators.
    Nothing waits for the device; read the attributes when you want to know.

    Args:
        inner_optimizer: The `keras.optimizers.Optimizer` that makes the update.
        initial_scale: Float, dimensionless, between `min_scale` and
            `max_scale`: the first loss scale. Defaults to `2.0**15`.
        dynamic_growth_steps: Int, in steps: Keras's name for
            `growth_interval`. Defaults to 2000.
        growth_factor: Float, above 1: multiplies the scale after
            `growth_interval` good steps in a row. Defaults to 2.
        backoff_factor: Float, strictly between 0 and 1: multiplies the scale
            when a gradient is inf or nan. Defaults to 0.5.
        growth_interval: Int, in steps, at least 1. Defaults to
            `dynamic_growth_steps`.
        growth_delay: Int, in steps, at least 0: good steps that do not count
            at the start and after each overflow. Defaults to 0.
        min_scale: Float: the floor, at least 2**-126. Defaults to 1.
        max_scale: Float: the ceiling, below 2**128. Defaults to `2.0**24`.
        hysteresis: Int, in steps, at least 1: the overflow that first backs
            off. Defaults to 1, which backs off at every overflow.
        hysteresis_refill: `"growth"`, `"good_step"` or `"backoff"`: what
            refills the hysteresis, see `mp.DynamicLossScale`. Defaults to
            `"growth"`.
        tolerance: Float from 0 to 1: the share of overflows below which the
            scale does not back off. Defaults to 0.
        dynamic: Bool: false for a fixed scale of `initial_scale`. Defaults to
            true.
        skip_nonfinite: Bool: false to apply a gradient that is inf or nan as
            a bare optimizer would; the scale still backs off. Defaults to
            true.
        jit_compile: Bool or `"auto"`: whether XLA compiles the update, with
            writes that are masked instead of a branch. `"auto"` does where
            that is faster and gives the same bits: in a graph, for dense
            gradients of 32,768 elements and more on average, with SGD, Adam,
            AdamW, Adamax, Lion or Nadam, unless `clipnorm`,
            `gradient_accumulation_steps` or `ema_overwrite_frequency` is set.
            True is as fast for every optimizer of Keras, and equal up to
            float32 rounding. Defaults to `"auto"`.
        all_reduce_dtype: `"float32"`, `"float16"` or `"bfloat16"`: the dtype
            in which gradients travel between replicas. Half the bytes in 16
            bits; a sum that overflows there skips the step. Defaults to the
            gradients' own.
        master_weights: Bool or `"auto"`: whether 16-bit variables are updated
            through float32 masters, by a `mp.MasterWeightOptimizer` that is
            put around `inner_optimizer`. `"auto"` does so when the optimizer
            is built, if a variable has 16 bits. Defaults to `"auto"`.
        name: String. Defaults to a unique name.
        **kwargs: None. Keras's settings of an update (`clipnorm`, ...) are
            refused with a message that says to set them on the inner
            optimizer.

    Attributes:
        loss_scale: Scalar float32 variable, dimensionless; `dynamic_scale` is
            the same variable under Keras's name. Can be set to a number.
        good_steps: Scalar int variable, in steps; `step_counter` is the same.
        hysteresis_left: Scalar int variable, in steps.
        skipped_steps: Scalar int variable, in steps: all steps skipped so far.
        consecutive_skipped_steps: Scalar int variable, in steps.
        found_inf: Scalar bool variable: whether the last step had inf or nan;
            `found_inf.numpy()` is a bool.
        rule: The `mp.DynamicLossScale` or `mp.StaticLossScale` in force. Its
            numbers are attributes too (`growth_factor`, `growth_interval`,
            `min_scale`, ...) and, on TensorFlow, can be set while training
            without retracing.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a number is out of its range, if `growth_interval` and
            `dynamic_growth_steps` differ, if numbers of a dynamic scale are
            given with `dynamic=False`, or if `inner_optimizer` scales the loss
            already.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> optimizer = mp.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    >>> weight = keras.Variable(1.0)
    >>> scaled_loss = optimizer.scale_loss(0.25)
    >>> scaled_gradient = 0.25 * float(optimizer.loss_scale)
    >>> optimizer.apply([scaled_gradient], [weight])
    >>> float(weight)
    0.75

    Reference:
        - [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int | None = None,
        growth_delay: int = 0,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        hysteresis: int = 1,
        hysteresis_refill: str = "growth",
        tolerance: float = 0.0,
        dynamic: bool = True,
        skip_nonfinite: bool = True,
        jit_compile: bool | str = "auto",
        all_reduce_dtype: str | None = None,
        master_weights: bool | str = "auto",
        name: str | None = None,
        **kwargs: Any,
    ):
        arguments.check_keywords(kwargs)
        arguments.check_inner_optimizer(inner_optimizer)
        rule = arguments.make_rule(
            dynamic,
            dynamic_growth_steps,
            growth_interval,
            initial_scale=initial_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_delay=growth_delay,
            min_scale=min_scale,
            max_scale=max_scale,
            hysteresis=hysteresis,
            hysteresis_refill=hysteresis_refill,
            tolerance=tolerance,
        )
        options = StepOptions(
            skip_nonfinite=skip_nonfinite,
            jit_compile=jit_compile,
            all_reduce_dtype=all_reduce_dtype,
        )
        stacking.check_choice(master_weights)
        super().__init__(inner_optimizer, rule, options, name)
        self._master_weights = master_weights
        self._drop_inner_loss_scale()

    def _drop_inner_loss_scale(self) -> None:
        factor = self.inner_optimizer.loss_scale_factor
        if factor is None:
            return
        warnings.warn(
            "The inner optimizer's `loss_scale_factor` is dropped, because "
            "this wrapper scales the loss. To keep it as a fixed scale, use "
            "`mp.wrap(optimizer)` or pass `dynamic=False, "
            f"initial_scale={factor!r}`. Received: "
            f"loss_scale_factor={factor!r}",
            LossScaleWarning,
            stacklevel=3,
        )
        self.inner_optimizer.loss_scale_factor = None

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the inner optimizer's variables, and masters if need be."""
        if self.built:
            return
        variables = list(variables)
        self.inner_optimizer = stacking.with_masters(
            self.inner_optimizer, self._master_weights, variables
        )
        super().build(variables)

    @property
    def updates_in_float32(self) -> bool:
        """Whether 16-bit variables are, or will be, updated in float32."""
        return isinstance(self.inner_optimizer, MasterWeightOptimizer) or (
            not self.built and stacking.will_stack(self._master_weights)
        )

    def master_weights(self, model: keras.Model) -> dict[str, Tensor]:
        """Returns the float32 values of a model's trainable variables.

        Args:
            model: The model that the optimizer trains.

        Returns:
            By `path` of the variable: its master; its own value in float32 if
            it has none.
        """
        inner = self.inner_optimizer
        if isinstance(inner, MasterWeightOptimizer):
            return inner.master_weights(model)
        return {
            variable.path: ops.cast(variable, "float32")
            for variable in model.trainable_variables
        }

    @as_written
    def scale_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss times the loss scale, in at least float32.

        Args:
            loss: Floating-point tensor of any shape, or a Python number.
        """
        self._ledger.note_scaled_loss()
        return ops.multiply(numerics.widened(loss), self.loss_scale)

    @as_written
    def unscale(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None = None,
    ) -> tuple[list[Gradient], Tensor]:
        """Divides gradients by the loss scale, to look at them or change them.

        On several replicas they are summed first, once and for all. Hand both
        results to `apply_unscaled`.

        Args:
            gradients: Gradients of the scaled loss: dense tensors,
                `tf.IndexedSlices` or `None`.
            variables: The variables they belong to. Defaults to those that
                the optimizer was built with.

        Returns:
            The gradients in at least float32, and a scalar bool tensor: whether
            one was inf or nan, on any replica.

        Raises:
            ValueError: If `variables` is left out where it matters: some are
                overwritten with their gradients (float8 scales), and there are
                not as many gradients as the optimizer has variables.

        Example:

        ```python
        gradients, found_inf = optimizer.unscale(gradients)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_unscaled(gradients, variables, found_inf)
        ```
        """
        return self._unscale(gradients, variables, by_guide=False)

    @as_written
    def get_scaled_loss(
        self, loss: Tensor | Callable[[], Tensor]
    ) -> Tensor | Callable[[], Tensor]:
        """Returns `scale_loss(loss)`, of a function as a function (Keras 2)."""
        if callable(loss):
            return lambda: self.scale_loss(loss())
        return self.scale_loss(loss)

    @as_written
    def get_unscaled_gradients(
        self, grads: Sequence[Gradient]
    ) -> list[Gradient]:
        """Returns the gradients divided by the loss scale (Keras 2).

        The `apply_gradients` that follows in the same function takes them, or
        what the loop has made of them, as they are.

        Args:
            grads: Gradients of the scaled loss.
        """
        return self._unscale(grads, None, by_guide=True)[0]

    @as_written
    def check_finite(self, grads: Sequence[Gradient]) -> Tensor:
        """Returns whether no gradient is inf or nan, a scalar bool tensor."""
        return ops.logical_not(gradient_lists.found_inf(grads))

    def __repr__(self) -> str:
        return f"<LossScaleOptimizer {self.rule} of {self.inner_optimizer}>"

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, in JSON types."""
        config = self.rule.get_config()
        if self.dynamic:
            config["dynamic_growth_steps"] = config.pop("growth_interval")
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(
                self.inner_optimizer
            ),
            **config,
            "dynamic": self.dynamic,
            **dataclasses.asdict(self._options),
            "master_weights": self._master_weights,
        }

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> "LossScaleOptimizer":
        """Returns the optimizer that a config describes.

        Args:
            config: From `get_config` of this class, of Keras's or of tf.keras's
                `LossScaleOptimizer`. It is left as it is.
            custom_objects: Classes by name, for an inner optimizer of one's
                own.
        """
        # tf.keras writes `None` for what a fixed scale does not have.
        config = {k: v for k, v in config.items() if v is not None}
        if "inner_optimizer" not in config:
            raise ValueError(
                "`config` must have an 'inner_optimizer', because this "
                f"optimizer wraps one. Received: config={config!r}"
            )
        inner_optimizer = arguments.deserialize_optimizer(
            config.pop("inner_optimizer"), custom_objects
        )
        return cls(inner_optimizer, **config)

    def _unscale(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None,
        *,
        by_guide: bool,
    ) -> tuple[list[Gradient], Tensor]:
        self._ledger.warn_if_loss_was_not_scaled(self.rule)
        gradients = list(gradients)
        if variables is None:
            variables = self._variables_in_order(gradients)
        distribution.check_replica_context()
        gradients_of_all = distribution.summed(gradients, self.all_reduce_dtype)
        found_inf = self._found_inf(gradients_of_all, variables)
        unscaled = self._unscaled(gradients_of_all, variables)
        self._ledger.note_unscaled(
            gradients, unscaled, found_inf, by_guide=by_guide
        )
        return unscaled, found_inf

    def _variables_in_order(
        self, gradients: Sequence[Gradient]
    ) -> Sequence[Variable | None]:
        """Returns the variables of gradients given without them."""
        variables = keras_internals.trainable_variables(self)
        if len(gradients) == len(variables):
            return variables
        if any(gradient_lists.is_overwritten(v) for v in variables):
            raise ValueError(
                "`variables` must be given, because some variables are "
                "overwritten with their gradients and those must not be "
                f"unscaled. Received: {len(gradients)} gradients for an "
                f"optimizer with {len(variables)} variables"
            )
        return [None] * len(gradients)
