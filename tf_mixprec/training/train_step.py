"""`TrainStep`: one training step in mixed precision, for loops and for `fit`."""

from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.conversion import convert
from tf_mixprec.numerics.casting import widened
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import wrap
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.tracing import as_written
from tf_mixprec.training import keras_internals
from tf_mixprec.training import misuse
from tf_mixprec.training.compile import compile
from tf_mixprec.training.gradient_sums import GradientSums
from tf_mixprec.training.instance_methods import set_method
from tf_mixprec.training.loss_hook import LossHook
from tf_mixprec.training.replicas import Replicas
from tf_mixprec.training.step_function import LOSS
from tf_mixprec.training.step_function import StepFunction
from tf_mixprec.training.step_function import count_loss
from tf_mixprec.training.step_totals import StepTotals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


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
        optimizer: A Keras optimizer, a name, a config, or what `mp.wrap`
            returned. If any layer computes in float16 it scales the loss; in
            any case it skips steps with inf or nan.
        loss: As in `model.compile`. `None` for a `compute_loss` of one's own,
            and for a model whose layers add all losses.
        metrics: As in `model.compile`.
        loss_weights: As in `model.compile`.
        weighted_metrics: As in `model.compile`.
        accumulation_steps: Int: into how many micro-batches each batch is cut,
            in a loop within the step. Their gradients are averaged in float32.
            Defaults to 1.
        clip_global_norm: Float: the bound of the global norm of the unscaled
            gradients, of the whole batch on all replicas. Defaults to none.
        clip_norm: Float: the bound of the norm of each gradient.
        clip_value: Float: the bound of each element.
        policy: A policy or `mp.PrecisionRules`, as for `mp.convert`; the model
            is then converted, and `step.model` is another one than `model`.
            Defaults to the precision that the model has.
        strategy: The `tf.distribute.Strategy` of the model. Defaults to the
            one in whose scope it was made.
        jit_compile: Bool or `"auto"`, as in `mp.compile`: whether XLA compiles
            the whole step.
        all_reduce_dtype: As in `mp.wrap`; give it there if the optimizer is
            wrapped already.

    Attributes:
        model: The model that is trained.
        optimizer: The `mp.LossScaleOptimizer`.

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
        strategy: Any = None,
        jit_compile: bool | str = "auto",
        all_reduce_dtype: str | None = None,
    ):
        misuse.check_backend()
        misuse.check_accumulation_steps(accumulation_steps)
        clipping = Clipping(
            global_norm=clip_global_norm, norm=clip_norm, value=clip_value
        )
        self._hook = LossHook.of(self, TrainStep)
        misuse.check_loss(self._hook, loss, metrics, weighted_metrics)
        misuse.check_model(model)
        strategy = misuse.checked_strategy(model, strategy)
        self._replicas = Replicas(strategy)
        self._accumulation_steps = accumulation_steps
        self._clipping = clipping
        with strategy.scope():
            if policy is not None:
                model = convert(model, policy)
            if all_reduce_dtype is not None:
                optimizer = wrap(optimizer, all_reduce_dtype=all_reduce_dtype)
            self.report = compile(
                model,
                optimizer,
                loss,
                loss_weights=loss_weights,
                metrics=list(metrics) if metrics == () else metrics,
                weighted_metrics=weighted_metrics,
                jit_compile=jit_compile,
                safe_skip=True,
            )
        self.model = model
        self.optimizer: LossScaleOptimizer = model.optimizer
        misuse.check_scales_once(self.optimizer)
        self._function: Any = None
        self._totals: StepTotals | None = None
        self._be_the_step_of_the_model()

    def compute_loss(self, model: keras.Model, batch: Any) -> Any:
        """Returns the loss of a batch; to be overridden.

        It is called where the step is traced, once per replica, inside of a
        gradient tape. The loss must not be scaled.

        Args:
            model: `step.model`. Call it with `training=True`, or take the
                argument `training: bool = True` and pass that on: `evaluate`
                calls with false.
            batch: What the step was given: `x`, `(x, y)` or
                `(x, y, sample_weight)`, on this replica, in one micro-batch.

        Returns:
            The mean loss over the examples of the batch, a scalar float
            tensor; or a pair of that and a dict of scalars for the logs.
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
            Scalar tensors. `loss` of this batch, over all replicas; `grad_norm`,
            the global norm of the unscaled gradients before clipping;
            `loss_scale` for the next step; `skipped`; then the metrics since
            `reset_metrics`, and what `compute_loss` returned. Of a skipped
            step `loss` and `grad_norm` can be inf or nan.

        Raises:
            RuntimeError: If the model has been compiled anew.
            ValueError: If the batch is too small, if the optimizer does not
                know a variable, or if `compute_loss` returns no scalar float.
        """
        logs, results = self._step((x, y, sample_weight))
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
        """Returns means since `reset_metrics`, for the logs of an epoch.

        `grad_norm` and what `compute_loss` returned are means over the steps
        that were not skipped, nan without any; `skipped` is the number of the
        others, and `loss_scale` that of the next step. Waits for the device.
        """
        scale = keras.ops.convert_to_numpy(self.optimizer.loss_scale)
        totals = {} if self._totals is None else self._totals.read()
        return {**totals, "loss_scale": float(scale)}

    @property
    def accumulation_steps(self) -> int:
        """Into how many micro-batches each batch is cut."""
        return self._accumulation_steps

    def _be_the_step_of_the_model(self) -> None:
        """Makes `model.fit` and what it calls use this step."""
        model = self.model

        def make_train_function(force: bool = False) -> Any:
            if force:
                self._function = None
            model.train_function = self._on_iterator
            return model.train_function

        set_method(model, "make_train_function", lambda _: make_train_function)
        model.train_function = None
        keras_internals.without_symbolic_build(model, self._build_for_fit)
        if self._hook is not None:
            set_method(model, "test_step", lambda _: self._test_step)

    def _on_iterator(self, iterator: Any) -> dict[str, Tensor]:
        """The train function of Keras: the next batch, and a step."""
        return self._step(
            keras.utils.unpack_x_y_sample_weight(
                keras_internals.without_optionals(next(iterator))
            )
        )[1]

    def _step(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        misuse.check_is_current(self)
        batch = self._replicas.distributed(tuple(batch))
        if self._function is None:
            self._build(batch)
        return self._function(batch)

    def _build_for_fit(self, data: Any) -> None:
        if data is not None:
            data = keras_internals.without_optionals(data)
            batch = keras.utils.unpack_x_y_sample_weight(data)
            self._build(self._replicas.distributed(tuple(batch)))

    def _build(self, batch: Any) -> None:
        """Makes all variables, and what traces the step."""
        model = self.model
        with self._replicas.strategy.scope():
            if self._hook is None:
                first = self._replicas.first(batch)
                keras_internals.build_metrics(model, first)
                names = []
            else:
                names = self._hook.build(model, batch, self._replicas)
            if not self.optimizer.built:
                self.optimizer.build(model.trainable_variables)
            misuse.check_variables(self.optimizer, model)
            if self._totals is None:
                self._totals = StepTotals(names)
            sums = None
            if self._accumulation_steps > 1:
                sums = GradientSums(model.trainable_weights, [LOSS, *names])
        self._function = tf.function(
            StepFunction(
                model,
                self._loss_of,
                self._replicas,
                self._clipping,
                sums,
                self._accumulation_steps,
                self._totals.add,
            ),
            autograph=False,
            jit_compile=model.jit_compile,
            # Shapes that are not known are what XLA cannot cut.
            reduce_retracing=not model.jit_compile,
        )

    def _loss_of(
        self, batch: Any, *, training: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns a replica's share of the loss, and other scalars."""
        model = self.model
        if self._hook is not None:
            loss, means = self._hook.loss_and_means(model, batch, training)
            loss = loss / self._replicas.count
            count_loss(model, batch, loss)
            return loss, means
        x, y, sample_weight = batch
        y_pred = keras_internals.predictions(model, x, training=training)
        loss = keras_internals.compute_loss(
            model,
            x=x,
            y=y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )
        misuse.check_is_scalar(loss)
        count_loss(model, batch, loss)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return widened(loss), {}

    def _test_step(self, data: Any) -> dict[str, Tensor]:
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, means = self._loss_of(batch, training=False)
        return {**self.model.get_metrics_result(), **means}


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
