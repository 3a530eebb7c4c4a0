"""From losses to the gradients that the optimizer is given."""

import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers import SharedLossScale
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LOSS = "loss"
Losses = dict[str, Tensor]


class Backward:
    """Gradients of one loss, scaled by the loss scale of the optimizer.

    Args:
        model: The compiled model.
        losses_of: From a replica's batch `(x, y, sample_weight)` to its share
            of each loss over all replicas, scalars in float32 by name, and a
            dict of other scalars; counts them in the metrics.
        accumulation_steps: How many micro-batches are added up.

    Attributes:
        share: A power of two that the loss of a micro-batch is multiplied
            with, and so its gradients, which are then no larger in 16 bits
            than those of the whole batch.
    """

    def __init__(
        self,
        model: Any,
        losses_of: Callable[[Any], tuple[Losses, dict[str, Tensor]]],
        accumulation_steps: int,
    ):
        self._model = model
        self._losses_of = losses_of
        self.share = 2.0 ** -math.floor(math.log2(accumulation_steps))

    def __call__(
        self, batch: Any, weight: Tensor | float = 1.0
    ) -> tuple[list[Gradient], dict[str, Tensor]]:
        """Returns the gradients, and what is averaged over micro-batches.

        Args:
            batch: `(x, y, sample_weight)` of this replica.
            weight: Scalar float32: what the gradients are multiplied with.
        """
        with tf.GradientTape() as tape:
            losses, means = self._losses_of(batch)
            (loss,) = losses.values()
            scaled_loss = self._model.optimizer.scale_loss(
                self._weighted(loss, weight)
            )
        gradients = tape.gradient(scaled_loss, self._model.trainable_weights)
        return gradients, {LOSS: loss, **means}

    def _weighted(self, loss: Tensor, weight: Tensor | float) -> Tensor:
        return loss * tf.cast(self.share * weight, loss.dtype)

    def update(self) -> dict[str, Tensor]:
        """Ends a step.

        Returns:
            What is logged of loss scales other than the optimizer's.
        """
        return {}


class BackwardOfSeveral(Backward):
    """Gradients of the sum of losses, each scaled by a scale of its own.

    One pass for each loss. Their gradients are divided by the scales before
    they are added, so the optimizer has a scale of 1. Apex calls this
    `num_losses`.

    Args:
        model: As for `Backward`.
        losses_of: As for `Backward`.
        accumulation_steps: As for `Backward`.
        loss_scales: By name of the loss, its scale.
    """

    def __init__(
        self,
        model: Any,
        losses_of: Callable[[Any], tuple[Losses, dict[str, Tensor]]],
        accumulation_steps: int,
        loss_scales: Mapping[str, SharedLossScale],
    ):
        super().__init__(model, losses_of, accumulation_steps)
        self._loss_scales = loss_scales

    def __call__(
        self, batch: Any, weight: Tensor | float = 1.0
    ) -> tuple[list[Gradient], dict[str, Tensor]]:
        """Returns the gradients, and what is averaged over micro-batches.

        Args:
            batch: `(x, y, sample_weight)` of this replica.
            weight: Scalar float32: what the gradients are multiplied with.
        """
        variables = self._model.trainable_weights
        with tf.GradientTape(persistent=True) as tape:
            losses, means = self._losses_of(batch)
            scaled = {
                name: self._loss_scales[name].scale_loss(
                    self._weighted(loss, weight)
                )
                for name, loss in losses.items()
            }
        total: list[Gradient] = [None] * len(variables)
        for name, loss in scaled.items():
            gradients = tape.gradient(loss, variables)
            scale = self._loss_scales[name]
            found_inf = gradient_lists.found_inf(gradients)
            scale.note(distribution.on_any_replica(found_inf))
            unscaled = gradient_lists.unscaled(
                gradients,
                variables,
                ops.convert_to_tensor(scale.loss_scale),
                by_reciprocal=False,
            )
            total = [_sum(a, b) for a, b in zip(total, unscaled, strict=True)]
        return total, {LOSS: sum(losses.values()), **means}

    def update(self) -> dict[str, Tensor]:
        """Moves the scales, and returns them for the logs."""
        for scale in self._loss_scales.values():
            scale.update()
        return {
            f"loss_scale/{name}": ops.convert_to_tensor(scale.loss_scale)
            for name, scale in self._loss_scales.items()
        }


def _sum(a: Gradient, b: Gradient) -> Gradient:
    if a is None or b is None:
        return b if a is None else a
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)
