"""What is traced for a batch: the whole step, over replicas and micro-batches.

```text
one micro-batch                          several, in a loop
  every replica: gradients, then           every replica: sums start at 0
    clip, update or skip, put back         for each: every replica: gradients;
                                             bad: left out, and put back
                                           every replica: clip, update or skip
```

The loop is outside of the replicas, since in one of theirs they could not ask
one another whether a micro-batch is bad.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.training import keras_internals
from tf_mixprec.training.gradient_sums import GradientSums
from tf_mixprec.training.micro_batches import MicroBatches
from tf_mixprec.training.micro_batches import first_tensor
from tf_mixprec.training.replicas import Replicas
from tf_mixprec.training.snapshot import Snapshot
from tf_mixprec.training.snapshot import changed_by_a_step

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LOSS = "loss"


class Outcome(NamedTuple):
    """What a replica knows after a step.

    Args:
        means: By name, scalars of this replica: the loss, as its share of the
            loss over all replicas, and what the user returns beside it.
        grad_norm: Scalar float32 tensor: the global norm before clipping.
        loss_scale: Scalar float32 tensor: the scale of the next step.
        skipped: Scalar bool tensor.
        results: By name, loss and metrics since they were reset.
    """

    means: dict[str, Tensor]
    grad_norm: Tensor
    loss_scale: Tensor
    skipped: Tensor
    results: dict[str, Tensor]


class StepFunction:
    """From a batch to an `Outcome`.

    Args:
        model: The compiled model.
        loss_of: From a replica's batch `(x, y, sample_weight)` to its share of
            the loss over all replicas, a scalar in float32, and a dict of
            scalars; counts both in the metrics.
        replicas: The replicas.
        clipping: How gradients are clipped.
        sums: Where micro-batches are added up; `None` for a single one.
        accumulation_steps: How many micro-batches there are.
        note: Is called on every replica at the end, with the outcome.
    """

    def __init__(
        self,
        model: Any,
        loss_of: Callable[[Any], tuple[Tensor, dict[str, Tensor]]],
        replicas: Replicas,
        clipping: Clipping,
        sums: GradientSums | None,
        accumulation_steps: int,
        note: Callable[[Outcome], None],
    ):
        self._model = model
        self._optimizer = model.optimizer
        self._loss_of = loss_of
        self._replicas = replicas
        self._clipping = clipping
        self._sums = sums
        self._accumulation_steps = accumulation_steps
        self._note = note

    def __call__(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the logs of the step, and loss and metrics so far.

        Args:
            batch: `(x, y, sample_weight)`, with a part for each replica.
        """
        run = self._replicas.run
        if self._sums is None:
            outcome = run(self._whole, batch)
        else:
            run(self._sums.reset)
            self._loop(lambda index: run(self._add, batch, index))
            outcome = run(self._finish)
        return self._over_replicas(Outcome(*outcome))

    def _over_replicas(
        self, outcome: Outcome
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        replicas = self._replicas
        means = dict(outcome.means)
        logs = {
            LOSS: replicas.sum(means.pop(LOSS)),
            **replicas.mean(means),
            "grad_norm": replicas.first(outcome.grad_norm),
            "loss_scale": replicas.first(outcome.loss_scale),
            "skipped": replicas.first(outcome.skipped),
        }
        return logs, replicas.mean(outcome.results)

    def _loop(self, body: Callable[[Tensor], Any]) -> None:
        def body_of_loop(index: Tensor) -> tuple[Tensor]:
            body(index)
            return (index + 1,)

        tf.while_loop(
            lambda index: index < self._accumulation_steps,
            body_of_loop,
            [tf.constant(0)],
            parallel_iterations=1,
        )

    def _whole(self, batch: Any) -> Outcome:
        """The step of a replica, of one micro-batch."""
        snapshot = Snapshot(changed_by_a_step(self._model))
        gradients, means = self._gradients(batch)
        skipped, norm = self._optimizer.clip_and_apply(
            gradients, self._model.trainable_weights, self._clipping
        )
        snapshot.put_back(skipped)
        return self._outcome(means, skipped, norm)

    def _add(self, batch: Any, index: Tensor) -> None:
        """Adds a replica's part of a micro-batch."""
        assert self._sums is not None
        micro_batches = MicroBatches(
            batch,
            self._accumulation_steps,
            jit_compile=bool(self._model.jit_compile),
        )
        snapshot = Snapshot(changed_by_a_step(self._model))
        gradients, means = self._gradients(micro_batches.part(index))
        variables = self._model.trainable_weights
        is_bad = self._optimizer.is_bad_micro_batch(gradients, variables)
        snapshot.put_back(is_bad)
        self._sums.add(
            gradients, variables, means, micro_batches.weight(index), is_bad
        )

    def _finish(self) -> Outcome:
        """The step of a replica, of the micro-batches that it has added."""
        sums = self._sums
        assert sums is not None
        skipped, norm = self._optimizer.clip_and_apply(
            sums.gradients,
            self._model.trainable_weights,
            self._clipping,
            count=self._count(sums),
            found_inf=sums.has_dropped,
        )
        return self._outcome(sums.means, skipped, norm)

    def _count(self, sums: GradientSums) -> Tensor:
        """Returns how many micro-batches were added, the same everywhere."""
        if self._replicas.count == 1:
            return sums.count
        # Parts of a batch can be uneven, and unevenly so on each replica.
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, sums.count)

    def _outcome(
        self, means: dict[str, Tensor], skipped: Tensor, norm: Tensor
    ) -> Outcome:
        outcome = Outcome(
            means,
            norm,
            tf.convert_to_tensor(self._optimizer.loss_scale),
            skipped,
            self._model.get_metrics_result(),
        )
        self._note(outcome)
        return outcome

    def _gradients(self, batch: Any) -> tuple[list[Gradient], dict[str, Any]]:
        """Returns the gradients of the scaled loss, and the averages."""
        with tf.GradientTape() as tape:
            loss, means = self._loss_of(batch)
            scaled_loss = self._optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._model.trainable_weights)
        return gradients, {LOSS: loss, **means}


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
