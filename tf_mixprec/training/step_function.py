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

from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.training.backward import LOSS
from tf_mixprec.training.backward import Backward
from tf_mixprec.training.gradient_sums import GradientSums
from tf_mixprec.training.micro_batches import MicroBatches
from tf_mixprec.training.replicas import Replicas
from tf_mixprec.training.snapshot import Snapshot

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Outcome(NamedTuple):
    """What a replica knows after a step.

    Args:
        means: By name, scalars of this replica: the loss, as its share of the
            loss over all replicas, and what the user returns beside it.
        grad_norm: Scalar float32 tensor: the global norm before clipping.
        loss_scales: By name in the logs, scalar float32 tensors: the scales of
            the next step.
        skipped: Scalar bool tensor.
        results: By name, loss and metrics since they were reset.
    """

    means: dict[str, Tensor]
    grad_norm: Tensor
    loss_scales: dict[str, Tensor]
    skipped: Tensor
    results: dict[str, Tensor]


class StepFunction:
    """From a batch to an `Outcome`.

    Args:
        model: The compiled model.
        backward: From a replica's batch to gradients.
        replicas: The replicas.
        clipping: How gradients are clipped.
        sums: Where micro-batches are added up; `None` for a single one.
        accumulation_steps: How many micro-batches there are.
        note: Is called on every replica at the end, with the outcome.
    """

    def __init__(
        self,
        model: Any,
        backward: Backward,
        replicas: Replicas,
        clipping: Clipping,
        sums: GradientSums | None,
        accumulation_steps: int,
        note: Callable[[Outcome], None],
    ):
        self._model = model
        self._optimizer = model.optimizer
        self._backward = backward
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
        run, sums = self._replicas.run, self._sums
        if sums is None:
            outcome = run(self._whole, batch)
        else:
            run(sums.reset)
            self._loop(
                lambda index: run(
                    lambda b, i: self._add(sums, b, i), batch, index
                )
            )
            outcome = run(lambda: self._finish(sums))
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
            "skipped": replicas.first(outcome.skipped),
            **replicas.first(outcome.loss_scales),
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
        snapshot = Snapshot(self._model)
        gradients, means = self._backward(batch)
        skipped, norm = self._optimizer.clip_and_apply(
            gradients, self._model.trainable_weights, self._clipping
        )
        snapshot.put_back(skipped)
        return self._outcome(means, skipped, norm)

    def _add(self, sums: GradientSums, batch: Any, index: Tensor) -> None:
        """Adds a replica's part of a micro-batch."""
        micro_batches = MicroBatches(
            batch,
            self._accumulation_steps,
            jit_compile=bool(self._model.jit_compile),
        )
        snapshot = Snapshot(self._model)
        weight = micro_batches.weight(index)
        gradients, means = self._backward(micro_batches.part(index), weight)
        variables = self._model.trainable_weights
        is_bad = self._optimizer.is_bad_micro_batch(gradients, variables)
        snapshot.put_back(is_bad)
        sums.add(gradients, variables, means, weight, is_bad)

    def _finish(self, sums: GradientSums) -> Outcome:
        """The step of a replica, of the micro-batches that it has added."""
        skipped, norm = self._optimizer.clip_and_apply(
            sums.gradients,
            self._model.trainable_weights,
            self._clipping,
            count=self._count(sums) * self._backward.share,
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
        scale = tf.convert_to_tensor(self._optimizer.loss_scale)
        outcome = Outcome(
            means,
            norm,
            {"loss_scale": scale, **self._backward.update()},
            skipped,
            self._model.get_metrics_result(),
        )
        self._note(outcome)
        return outcome
