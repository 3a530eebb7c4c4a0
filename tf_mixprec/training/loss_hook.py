"""A loss that users compute themselves."""

import inspect
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics.casting import widened
from tf_mixprec.training import misuse
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

    @classmethod
    def of(cls, step: Any, base: type) -> "LossHook | None":
        """Returns the hook of a step, `None` if it has not overridden it."""
        if type(step).compute_loss is base.compute_loss:  # type: ignore
            return None
        return cls(step)

    def build(self, model: Any, batch: Any, replicas: Replicas) -> list[str]:
        """Makes the variables that the loss needs, by tracing it once.

        Args:
            model: The model.
            batch: `(x, y, sample_weight)`, with a part for each replica.
            replicas: The replicas.

        Returns:
            The names of the scalars beside the loss.
        """

        def trace(batch: Any) -> None:
            replicas.run(lambda b: self.loss_and_means(model, b, True), batch)

        tf.function(trace, autograph=False).get_concrete_function(batch)
        return self._names

    def loss_and_means(
        self, model: Any, batch: Any, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss in float32, and the scalars beside it.

        Args:
            model: The model.
            batch: `(x, y, sample_weight)` of this replica.
            training: Whether the model is trained.
        """
        options = {"training": training} if self._takes_training else {}
        optimizer = self._step.optimizer
        with optimizer.forbidding_scale_loss(misuse.SCALES_ONCE):
            result = self._step.compute_loss(
                model, keras.utils.pack_x_y_sample_weight(*batch), **options
            )
        loss, means = result if isinstance(result, tuple) else (result, {})
        loss = tf.convert_to_tensor(loss)
        misuse.check_is_scalar(loss)
        misuse.check_float16_is_scaled(loss, optimizer)
        misuse.check_means(means)
        self._names = list(means)
        return widened(loss), {
            name: tf.cast(value, tf.float32) for name, value in means.items()
        }
