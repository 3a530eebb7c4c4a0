"""What is examined: a model, and the loss it is trained with."""

import math
from typing import Any

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.taps import Taps
from tf_mixprec.numerics.casting import widened
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.training import TrainStep
from tf_mixprec.training import keras_internals
from tf_mixprec.training import model_autocast
from tf_mixprec.training.instance_methods import covered

Batch = tuple[Any, Any, Any]


class Subject:
    """A model with its loss.

    Args:
        model: A `keras.Model`, or the `mp.TrainStep` that trains it.
        loss: As in `model.compile`: a loss, a function or a name, or a list or
            dict of them for the outputs. Defaults to what the model is
            compiled with.

    Attributes:
        model: The model.
        optimizer: The optimizer it is compiled with; `None` for none.
        jit_compile: Whether XLA compiles its training step.

    Raises:
        TypeError: If `model` is neither.
        ValueError: If there is no loss, or if the model is on several
            replicas, or under autocast.
    """

    def __init__(self, model: Any, loss: Any = None):
        self._step = model if isinstance(model, TrainStep) else None
        self.model = model_behind(model)
        _check_model(self.model)
        is_compiled = self.model.compiled
        if loss is None and not is_compiled:
            raise ValueError(
                "`model` must be compiled, or `loss` be given, because the "
                "gradients are those of a loss. Received: loss=None, and "
                f"{self.model.name!r}, which is not compiled"
            )
        self._losses = keras.tree.map_structure(_as_loss, loss)
        self.optimizer = self.model.optimizer if is_compiled else None
        self.jit_compile = bool(is_compiled and self.model.jit_compile)

    def build(self, batch: Batch) -> None:
        """Makes the variables of the model and its loss, where need be.

        Args:
            batch: `(x, y, sample_weight)`.
        """
        if not keras_internals.is_built(self.model):
            self.model(batch[0])
        if self._step is not None:
            self._step.build(batch)
        elif self._losses is None:
            # Keras would build the optimizer too, for what is trainable now.
            optimizers = [] if self.optimizer is None else [self.optimizer]
            with covered(optimizers, "build", _building_nothing):
                keras_internals.build_metrics(self.model, batch)

    def loss(
        self, batch: Batch, taps: Taps | None, *, training: bool
    ) -> Tensor:
        """Returns the loss of a batch, a scalar in float32.

        Args:
            batch: `(x, y, sample_weight)`.
            taps: Looks at what the loss is given; `None` for none.
            training: Whether the model is trained.
        """
        if self._step is not None and self._step.has_own_loss:
            losses, _ = self._step.losses_of(batch, training=training)
            return sum(losses.values())
        x, y, sample_weight = batch
        predictions = keras_internals.predictions(
            self.model, x, training=training
        )
        if taps is not None:
            predictions = taps.loss_inputs(predictions)
        if self._losses is None:
            loss = keras_internals.compute_loss(
                self.model,
                x=x,
                y=y,
                y_pred=predictions,
                sample_weight=sample_weight,
                training=training,
            )
            return widened(loss)
        return self._given_loss(y, predictions, sample_weight)

    def _given_loss(self, y: Any, predictions: Any, weights: Any) -> Tensor:
        losses = self._losses
        if not isinstance(losses, (list, tuple, dict)):
            losses, y, predictions = [losses], [y], [predictions]
        names = losses if isinstance(losses, dict) else range(len(losses))
        total = sum(
            widened(losses[name](y[name], predictions[name], weights))
            for name in names
            if losses[name] is not None
        )
        return total + sum(widened(each) for each in self.model.losses)

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next step; 1 if there is none."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return float(getattr(self.optimizer, "loss_scale_factor", 1) or 1)
        scale = getattr(self.optimizer, "dynamic_scale", None)
        if scale is None:  # Keras's own, before it is built
            return float(self.optimizer.initial_scale)
        return float(keras.ops.convert_to_numpy(scale))

    def checked_scale(self, loss_scale: Any) -> float:
        """Returns a loss scale, that of the optimizer for `None`.

        Args:
            loss_scale: What a user has given.

        Raises:
            TypeError: If it is no number.
            ValueError: If it is not finite and above 0.
        """
        if loss_scale is None:
            return self.loss_scale
        if isinstance(loss_scale, bool) or not isinstance(
            loss_scale, (int, float, np.number)
        ):
            raise TypeError(
                "`loss_scale` must be a float, because the loss is multiplied "
                f"with it. Received: loss_scale={loss_scale!r}"
            )
        if not 0.0 < loss_scale < math.inf:
            raise ValueError(
                "`loss_scale` must be finite and above 0, because gradients "
                f"are divided by it. Received: loss_scale={loss_scale!r}"
            )
        return float(loss_scale)

    @property
    def scales_safely(self) -> bool:
        """Whether a step with inf or nan is skipped, and the scale lowered."""
        return isinstance(
            self.optimizer, keras.optimizers.LossScaleOptimizer
        ) and getattr(self.optimizer, "skip_nonfinite", True)

    @property
    def initial_scale(self) -> float | None:
        """Where a dynamic scale that is at its minimum began; else `None`.

        In a run that is stuck the scale falls to there, and gradients vanish.
        """
        if not self.has_dynamic_scale:
            return None
        optimizer: Any = self.optimizer
        # That of Keras falls until float32 ends.
        minimum = getattr(optimizer, "min_scale", 2.0**-126)
        initial = float(optimizer.initial_scale)
        is_stuck = self.loss_scale <= minimum < initial
        return initial if is_stuck else None

    @property
    def has_dynamic_scale(self) -> bool:
        """Whether the loss scale finds its value by itself."""
        if isinstance(self.optimizer, LossScaleOptimizer):
            return self.optimizer.dynamic
        return self.scales_safely


def model_behind(model: Any) -> Any:
    """Returns the model of a `mp.TrainStep`, and all else as it is."""
    return model.model if isinstance(model, TrainStep) else model


def _building_nothing(optimizer: Any, build: Any) -> Any:
    return lambda variables: None


class _FunctionLoss(keras.losses.Loss):
    """A function of targets and predictions, averaged as Keras does it."""

    def __init__(self, function: Any):
        super().__init__(name="loss")
        self.call = function


def _as_loss(loss: Any) -> Any:
    loss = keras.losses.get(loss)
    if loss is None or isinstance(loss, keras.losses.Loss):
        return loss
    return _FunctionLoss(loss)


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model` or a `mp.TrainStep`, because its "
            f"layers are looked at. Received: model={model!r}"
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "`model` must be on one replica, because one batch is looked at; "
            "make it outside of the scope of the strategy and load its "
            f"weights. Received: {model.distribute_strategy!r}"
        )
    if model_autocast.is_under_autocast(model):
        raise ValueError(
            "`model` must be one that has its precision from dtype policies, "
            "because autocast makes other operations of its layers; compile "
            "it without `autocast`, or look at `mp.convert(model, policy)`. "
            f"Received: {model.name!r}, compiled with autocast"
        )
