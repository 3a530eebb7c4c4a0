"""A loss that users compute themselves."""

import inspect
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened
from tf_mixprec.training import misuse
from tf_mixprec.training.backward import LOSS
from tf_mixprec.training.float32_ends import outputs_in_float32
from tf_mixprec.training.keras_losses import count_loss
from tf_mixprec.training.replicas import Replicas

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class LossHook:
    """The method `compute_loss` of a subclass of `TrainStep`.

    Args:
        step: The instance of the subclass.
    """

    def __init__(self, step: Any):
        self._step = step
        parameters = inspect.signature(step.compute_loss).parameters
        self._takes_training = "training" in parameters
        self._names: list[str] = []

    def build(self, batch: Any, replicas: Replicas) -> list[str]:
        """Makes the variables that the loss needs, by tracing it once.

        Args:
            batch: `(x, y, sample_weight)`, with a part for each replica.
            replicas: The replicas.

        Returns:
            The names of the scalars beside the loss.
        """

        def trace(batch: Any) -> None:
            replicas.run(self, batch)

        tf.function(trace, autograph=False).get_concrete_function(batch)
        return self._names

    def __call__(
        self, batch: Any, *, training: bool = True
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns this replica's share of the losses, and the scalars.

        Args:
            batch: `(x, y, sample_weight)` of this replica.
            training: Whether the model is trained.
        """
        model, optimizer = self._step.model, self._step.optimizer
        options = {"training": training} if self._takes_training else {}
        with (
            optimizer.forbidding_scale_loss(misuse.SCALES_ONCE),
            outputs_in_float32(model, training=training),
        ):
            result = self._step.compute_loss(
                model, keras.utils.pack_x_y_sample_weight(*batch), **options
            )
        if result is None:
            raise ValueError(
                "`compute_loss` must return a loss, because its gradient is "
                "taken. Received: None"
            )
        found, means = result if isinstance(result, tuple) else (result, {})
        misuse.check_means(means)
        losses = self._checked(found)
        means = {k: tf.cast(v, tf.float32) for k, v in means.items()}
        if self._step.loss_scales:
            means = {**losses, **means}
        self._names = list(means)
        replica_count = tf.distribute.get_strategy().num_replicas_in_sync
        losses = {k: v / replica_count for k, v in losses.items()}
        count_loss(model, batch, sum(losses.values()))
        return losses, means

    def _checked(self, found: Any) -> dict[str, Tensor]:
        """Returns losses by name, in float32."""
        scales = self._step.loss_scales
        misuse.check_loss_names(found, list(scales))
        losses = found if scales else {LOSS: found}
        losses = {k: tf.convert_to_tensor(v) for k, v in losses.items()}
        for loss in losses.values():
            misuse.check_is_scalar(loss)
            if not scales:
                misuse.check_float16_is_scaled(loss, self._step.optimizer)
        return {k: widened(v) for k, v in losses.items()}
