"""`TrainStep`: a training step in mixed precision, for loops and `fit`."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.conversion import convert
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import SharedLossScale
from tf_mixprec.optimizers import wrap
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.tracing import as_written
from tf_mixprec.training import keras_internals
from tf_mixprec.training import misuse
from tf_mixprec.training.backward import LOSS
from tf_mixprec.training.backward import Backward
from tf_mixprec.training.backward import BackwardOfSeveral
from tf_mixprec.training.compile import compile
from tf_mixprec.training.gradient_sums import GradientSums
from tf_mixprec.training.keras_loop import TestWithLosses
from tf_mixprec.training.keras_loop import TrainWithStep
from tf_mixprec.training.keras_losses import KerasLosses
from tf_mixprec.training.loss_hook import LossHook
from tf_mixprec.training.micro_batches import check_enough
from tf_mixprec.training.micro_batches import of_any_size
from tf_mixprec.training.model_autocast import ModelAutocast
from tf_mixprec.training.remat import Remat
from tf_mixprec.training.remat import chosen_layers
from tf_mixprec.training.replicas import Replicas
from tf_mixprec.training.step_function import StepFunction
from tf_mixprec.training.step_totals import StepTotals
from tf_mixprec.training.step_totals import number

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_UNSCALED = StaticLossScale(initial_scale=1.0)


class TrainStep:
    """Makes training steps of a model, in the precision of its layers.

    ```text
    step(x, y)    inputs in the dtype of each layer, loss in float32
                  gradients of the scaled loss, summed over replicas
                  inf or nan: the step leaves no trace, the scale backs off
                  else: clipped, and applied to float32 weights or masters
    ```

    The model is compiled with the optimizer, the loss and the metrics, by
    `mp.compile`, so `step.model` can be saved, and `model.fit` makes these
    steps too. For each shape of a batch one function is traced.

    A skipped step changes no weight, slot, moving statistic or metric, on any
    replica; seeds of random layers go on. With several micro-batches a bad one
    is left out and the average is over the others. Whatever says so stays on
    the device until it is read.

    To compute the loss in another way, override `compute_loss` in a subclass.

    Args:
        model: The model. Made in `strategy.scope()` if there is a strategy.
            What is frozen when the step is made stays so, see `trace_anew`.
        optimizer: A Keras optimizer, a name, a config, or what `mp.wrap`
            returned. If any layer computes in float16 it scales the loss; in
            any case it skips steps with inf or nan.
        loss: As in `model.compile`. `None` for a `compute_loss` of one's own,
            and for a model whose layers add all losses.
        metrics: As in `model.compile`.
        loss_weights: As in `model.compile`.
        weighted_metrics: As in `model.compile`.
        accumulation_steps: Int: into how many micro-batches each batch is cut,
            in a loop within the step. Their gradients are averaged in float32;
            those of an `Embedding` become dense, for which Adam and others of
            Keras take another step where an id occurs twice. Defaults to 1.
        clip_global_norm: Float: the bound of the global norm of the unscaled
            gradients, of the whole batch on all replicas. Defaults to none.
        clip_norm: Float: the bound of the norm of each gradient.
        clip_value: Float: the bound of each element.
        policy: A policy or `mp.PrecisionRules`, as for `mp.convert`; the model
            is then converted, and `step.model` is another one than `model`.
            Defaults to the precision that the model has.
        autocast: `"bfloat16"`, `"float16"` or `"auto"`, as in `mp.compile`:
            the calls of a model in float32 are then under `mp.autocast`.
            Defaults to `None`, for none.
        strategy: The `tf.distribute.Strategy` of the model. Defaults to the
            one in whose scope it was made.
        jit_compile: Bool or `"auto"`, as in `mp.compile`: whether XLA compiles
            the whole step.
        all_reduce_dtype: As in `mp.wrap`; give it there if the optimizer is
            wrapped already.
        loss_scales: By name, a preset or a rule as for `mp.wrap`, or `None` for
            its default: loss scales for several losses, which `compute_loss`
            then returns by these names. Each is scaled by its own, in a
            backward pass of its own. The optimizer must not be wrapped then.
        remat: `True`, or a list of regular expressions that paths of layers
            match as a whole: what these compute is then computed again in the
            backward pass, and not kept until then. For memory; a step takes
            longer. Dropout is the same both times, and statistics move once.
            `True` means the layers that the model itself has, but for those
            that cannot be computed again: they have a state in a loop.
            Defaults to `None`, for none.

    Attributes:
        model: The model that is trained.
        optimizer: The `mp.LossScaleOptimizer`.
        loss_scales: By name of a loss, its `mp.SharedLossScale`.
        report: What was compiled, a `mp.CompileReport`.
        has_own_loss: Whether `compute_loss` is overridden.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range, or if two of them do
            not go together.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> step = mp.TrainStep(
    ...     model, "sgd", "mse", accumulation_steps=2, clip_global_norm=1.0
    ... )
    >>> logs = step(np.ones((8, 4)), np.ones((8, 1)))
    >>> sorted(logs)
    ['grad_norm', 'loss', 'loss_scale', 'skipped']
    >>> bool(logs["skipped"])
    False
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any,
        loss: Any = None,
        *,
        metrics: Any = (),
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        accumulation_steps: int = 1,
        clip_global_norm: float | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        policy: Any = None,
        autocast: str | None = None,
        strategy: Any = None,
        jit_compile: bool | str = "auto",
        all_reduce_dtype: str | None = None,
        loss_scales: Mapping[str, Any] | None = None,
        remat: Any = None,
    ):
        misuse.check_backend()
        misuse.check_accumulation_steps(accumulation_steps)
        clipping = Clipping(
            global_norm=clip_global_norm, norm=clip_norm, value=clip_value
        )
        has_hook = type(self).compute_loss is not TrainStep.compute_loss
        if has_hook:
            misuse.check_no_loss(loss, metrics, weighted_metrics)
        misuse.check_loss_scales(loss_scales, has_hook, optimizer)
        misuse.check_model(model)
        strategy = misuse.checked_strategy(model, strategy)
        options: dict[str, Any] = {}
        if all_reduce_dtype is not None:
            options["all_reduce_dtype"] = all_reduce_dtype
        self._replicas = Replicas(strategy)
        self._accumulation_steps = accumulation_steps
        self._clipping = clipping
        with strategy.scope():
            if policy is not None:
                model = convert(model, policy)
            self.loss_scales = {
                name: SharedLossScale(rule)
                for name, rule in (loss_scales or {}).items()
            }
            if loss_scales:  # and none of the optimizer's
                optimizer = wrap(optimizer, _UNSCALED, **options)
            elif options:
                optimizer = wrap(optimizer, **options)
            self.report = compile(
                model,
                optimizer,
                loss,
                loss_weights=loss_weights,
                metrics=metrics or None,
                weighted_metrics=weighted_metrics,
                jit_compile=jit_compile,
                safe_skip=True,
                autocast=autocast,
            )
        self.model = model
        self.optimizer: LossScaleOptimizer = model.optimizer
        misuse.check_scales_once(self.optimizer)
        self.optimizer.has_other_scales = bool(loss_scales)
        self._functions: dict[Hashable, Any] = {}
        self._sums: GradientSums | None = None
        self._totals: StepTotals | None = None
        self.has_own_loss = has_hook
        self._losses = LossHook(self) if has_hook else KerasLosses(model)
        self._losses_of: Callable[..., Any] = self._losses
        layers = chosen_layers(model, remat)
        if layers:
            again = Remat(layers, strict=remat is not True)
            self._losses_of = again.around(self._losses_of)
        if self.report.autocast:
            scope = ModelAutocast(model, self.report.autocast)
            self._losses_of = scope.around(self._losses_of)
        self._loss_tracker = keras_internals.loss_tracker(model)
        TrainWithStep(self)
        self._test = TestWithLosses(self, self._losses_of) if has_hook else None

    def compute_loss(self, model: keras.Model, batch: Any) -> Any:
        """Returns the loss of a batch; to be overridden.

        It is called where the step is traced, once per replica, inside of a
        gradient tape. The loss must not be scaled.

        Args:
            model: `step.model`. Here its outputs are in float32, and called
                without `training` it trains, or in `evaluate` does not. A
                method with an argument `training` is told which.
            batch: What the step was given: `x`, `(x, y)` or
                `(x, y, sample_weight)`, on this replica, in one micro-batch.

        Returns:
            The mean loss over the examples of the batch, a scalar float
            tensor, or with `loss_scales` a dict of these; or a pair of that
            and a dict of scalars for the logs, which are averaged over
            micro-batches. What layers and regularizers add is in
            `model.losses`, and not added by itself.
        """
        raise NotImplementedError

    @as_written
    def __call__(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> dict[str, Tensor]:
        """Makes a step.

        Args:
            x: The inputs: arrays or tensors whose first axis is the batch,
                nested as the model takes them. Several replicas take a part
                each; what a distributed data set yields has the parts already.
            y: The targets. Defaults to none.
            sample_weight: The weights of the examples. Defaults to none.

        Returns:
            Scalar tensors. `loss` of this batch, over all replicas;
            `grad_norm`, the global norm of the unscaled gradients before
            clipping; `loss_scale` for the next step; `skipped`; then the
            metrics since `reset_metrics`, and what `compute_loss` returned.
            Of a skipped step `loss` and `grad_norm` can be inf or nan.

        Raises:
            RuntimeError: If the model has been compiled anew.
            ValueError: If the batch is too small, if the optimizer does not
                know a variable, or if `compute_loss` returns no scalar float.
        """
        logs, results = self._logs_and_results((x, y, sample_weight))
        return {**results, **logs}

    def evaluate(self, data: Any, **options: Any) -> dict[str, float]:
        """Returns loss and metrics of data, computed without training.

        Args:
            data: As for `mp.fit`.
            **options: Of `model.evaluate`, such as `batch_size`.
        """
        misuse.check_is_current(self)
        options = {"verbose": 0, **options, "return_dict": True}
        return self.model.evaluate(**as_arguments(data), **options)

    def predict(self, x: Any, **options: Any) -> Any:
        """Returns the predictions of the model as arrays.

        Args:
            x: Inputs, or a data set of them.
            **options: Of `model.predict`, such as `batch_size`.
        """
        return self.model.predict(x, **{"verbose": 0, **options})

    def reset_metrics(self) -> None:
        """Starts the metrics anew, at the beginning of an epoch."""
        self.model.reset_metrics()
        if self._totals is not None:
            self._totals.reset()

    def epoch_logs(self) -> dict[str, float]:
        """Returns what there is to say of the steps since `reset_metrics`.

        Loss and metrics; `grad_norm` and what `compute_loss` returned, means
        over the steps that were not skipped; `skipped`, the number of the
        others; `loss_scale` for the next step. Waits for the device.
        """
        results = self.model.get_metrics_result()
        scales = {
            f"loss_scale/{name}": number(scale.loss_scale)
            for name, scale in self.loss_scales.items()
        }
        return {
            **{k: number(v) for k, v in results.items()},
            **({} if self._totals is None else self._totals.read()),
            "loss_scale": number(self.optimizer.loss_scale),
            **scales,
        }

    @property
    def losses_of(self) -> Callable[..., Any]:
        """From a replica's batch to its losses by name, and other scalars.

        Takes `(x, y, sample_weight)`, and counts them in the metrics.
        """
        return self._losses_of

    @property
    def accumulation_steps(self) -> int:
        """Into how many micro-batches each batch is cut."""
        return self._accumulation_steps

    @property
    def replicas(self) -> Replicas:
        """The replicas that make the steps."""
        return self._replicas

    @property
    def is_current(self) -> bool:
        """Whether the model is still compiled for this step."""
        tracker = keras_internals.loss_tracker(self.model)
        return tracker is self._loss_tracker

    def results(self, batch: Any) -> dict[str, Tensor]:
        """Makes a step, and returns loss and metrics since they were reset.

        Args:
            batch: `(x, y, sample_weight)`.
        """
        return self._logs_and_results(batch)[1]

    def trace_anew(self) -> None:
        """Makes the next step traced anew.

        For what a trace takes for granted, such as `layer.trainable`.
        """
        self._functions.clear()
        self._sums = None

    @property
    def _function(self) -> Any:
        """The step that notes what callbacks ask for; `None` if not traced."""
        return self._functions.get(self.optimizer.notes.key)

    def build(self, batch: Any) -> None:
        """Makes all variables; the first step does. A second time, nothing.

        Args:
            batch: `(x, y, sample_weight)`, as for a step.
        """
        if self._function is None:
            self._build(self._replicas.distributed(batch))

    def _logs_and_results(
        self, batch: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        misuse.check_is_current(self)
        batch = self._replicas.distributed(batch)
        if self._accumulation_steps > 1:
            check_enough(self._replicas.first(batch), self._accumulation_steps)
        if self._function is None:
            self._build(batch)
        with self._replicas.device():
            return self._function(batch)

    def _build(self, batch: Any) -> None:
        model = self.model
        with self._replicas.strategy.scope():
            names = self._losses.build(batch, self._replicas)
            if not self.optimizer.built:
                self.optimizer.build(model.trainable_variables)
            misuse.check_variables(self.optimizer, model)
            if self._totals is None:
                self._totals = StepTotals(names)
            if self._test is not None:
                self._test.make_means(names)
            if self._accumulation_steps > 1 and self._sums is None:
                self._sums = GradientSums(
                    model.trainable_weights, [LOSS, *names]
                )
        function = tf.function(
            StepFunction(
                model,
                self._backward(),
                self._replicas,
                self._clipping,
                self._sums,
                self._accumulation_steps,
                self._totals.add,
            ),
            autograph=False,
            jit_compile=model.jit_compile,
            # Shapes that are not known are what XLA cannot cut.
            reduce_retracing=not model.jit_compile,
        )
        if not model.jit_compile and not self._replicas.are_several:
            # One trace for all sizes: Keras weighs the losses of outputs by
            # the size of a batch where it is known.
            function.get_concrete_function(of_any_size(batch))
        self._functions[self.optimizer.notes.key] = function

    def _backward(self) -> Backward:
        arguments = (self.model, self._losses_of, self._accumulation_steps)
        if self.loss_scales:
            return BackwardOfSeveral(*arguments, self.loss_scales)
        return Backward(*arguments)


def as_arguments(data: Any) -> dict[str, Any]:
    """Returns data as the arguments that `model.fit` takes them in.

    Args:
        data: A tuple of arrays `(x, y)` or `(x, y, sample_weight)`, or anything
            that Keras takes as `x`: a `tf.data.Dataset`, a `PyDataset`, a
            generator, arrays.
    """
    if not isinstance(data, tuple):
        return {"x": data}
    names = ("x", "y", "sample_weight")
    if not 1 <= len(data) <= len(names):
        raise ValueError(
            "`data` must be `(x,)`, `(x, y)` or `(x, y, sample_weight)` where "
            "it is a tuple, because that is what Keras trains with. Received: "
            f"a tuple of {len(data)}"
        )
    return dict(zip(names, data, strict=False))
