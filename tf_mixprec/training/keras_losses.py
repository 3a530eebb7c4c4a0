"""The losses and metrics that a model is compiled with."""

from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened
from tf_mixprec.training import keras_internals
from tf_mixprec.training import misuse
from tf_mixprec.training.backward import LOSS
from tf_mixprec.training.micro_batches import first_tensor
from tf_mixprec.training.replicas import Replicas

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class KerasLosses:
    """From a replica's batch to its share of the loss, as `model.fit` has it.

    Args:
        model: The compiled model.
    """

    def __init__(self, model: Any):
        self._model = model

    def build(self, batch: Any, replicas: Replicas) -> list[str]:
        """Makes the variables of the model, its loss and its metrics.

        Args:
            batch: `(x, y, sample_weight)`, with a part for each replica.
            replicas: The replicas.

        Returns:
            The names of the scalars beside the loss: none.
        """
        first = replicas.first(batch)
        misuse.check_target(self._model, first[1])
        keras_internals.build_metrics(self._model, first)
        return []

    def __call__(
        self, batch: Any, *, training: bool = True
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the loss in float32 by name, and no scalars beside it.

        Args:
            batch: `(x, y, sample_weight)` of this replica.
            training: Whether the model is trained.
        """
        model = self._model
        x, y, sample_weight = batch
        y_pred = keras_internals.predictions(model, x, training=training)
        misuse.check_has_loss(model)
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
        return {LOSS: widened(loss)}, {}


def count_loss(model: Any, batch: Any, loss: Tensor) -> None:
    """Counts a loss in the mean of the epoch, as Keras does.

    Args:
        model: A compiled model.
        batch: `(x, y, sample_weight)` of this replica.
        loss: This replica's share of the loss over all replicas.
    """
    replica_count = tf.distribute.get_strategy().num_replicas_in_sync
    if replica_count > 1:
        loss = loss * tf.cast(replica_count, loss.dtype)
    size = tf.shape(first_tensor(batch))[0]
    keras_internals.loss_tracker(model).update_state(loss, sample_weight=size)
