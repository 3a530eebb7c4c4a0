"""The file that knows `tf.distribute`: one decision for all replicas."""

from collections.abc import Callable
from collections.abc import Sequence

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

Update = Callable[[Sequence[Gradient], Sequence[Variable]], None]


def on_any_replica(found_inf: Tensor) -> Tensor:
    """Returns whether `found_inf` is true on any replica, on each of them."""
    if keras.backend.backend() != "tensorflow":
        return found_inf
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            "An optimizer step must be taken in a replica context, because "
            "each replica has gradients of its own; take it inside the "
            "function that you give to `strategy.run`. Received: a call in "
            "the cross-replica context."
        )
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return found_inf
    # `all_reduce` knows SUM and MEAN only. At most one per replica.
    count = context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(found_inf, tf.float32)
    )
    return count > 0


def update_unless(
    skips: Tensor,
    update: Update,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
) -> None:
    """Calls `update(gradients, variables)` on each replica unless `skips`.

    Args:
        skips: Scalar bool tensor, the same on every replica.
        update: What a step does.
        gradients: The gradients of this replica.
        variables: Their variables.
    """
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        _call_unless(skips, lambda: update(gradients, variables))
        return

    def update_replicas(strategy, skips, gradients, variables):
        # All replicas agree, so the first one's answer is the answer.
        skips = strategy.experimental_local_results(skips)[0]
        _call_unless(
            skips,
            lambda: strategy.extended.call_for_each_replica(
                update, args=(gradients, variables)
            ),
        )

    # The `cond` must lie outside of the replicas: the update makes merge calls,
    # and these are not allowed in a branch inside a replica.
    tf.distribute.get_replica_context().merge_call(
        update_replicas, args=(skips, gradients, variables)
    )


def _call_unless(skips: Tensor, call: Callable[[], None]) -> None:
    # `tf.cond`, since `keras.ops.cond` wraps what is raised inside.
    tf.cond(skips, lambda: None, call)
