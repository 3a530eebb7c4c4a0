"""The file that knows `tf.distribute`: sums gradients, finds components."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers import tensorflow_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def check_strategy() -> None:
    """Raises under a strategy that does not keep a copy of each variable."""
    if keras.backend.backend() != "tensorflow":
        return
    strategy = tf.distribute.get_strategy()
    unsupported = (
        tf.distribute.TPUStrategy,
        tf.distribute.ParameterServerStrategy,
        tf.distribute.experimental.ParameterServerStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    )
    if isinstance(strategy, unsupported):
        raise ValueError(
            f"{type(strategy).__name__} must not be used with a loss scale, "
            "because the step is made on a copy of every variable on every "
            "replica. On TPUs train in `mixed_bfloat16` with the optimizer "
            "itself, which needs no loss scale; on several machines use "
            "`tf.distribute.MultiWorkerMirroredStrategy`, on several GPUs "
            "`tf.distribute.MirroredStrategy`. Received: "
            f"strategy={strategy!r}"
        )


def check_replica_context() -> None:
    """Raises where a replica cannot take a step."""
    if keras.backend.backend() != "tensorflow":
        return
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            "An optimizer step must be taken in a replica context, because "
            "each replica has gradients of its own; take it inside the "
            "function that you give to `strategy.run`. Received: a call in "
            "the cross-replica context."
        )
    context = tf.distribute.get_replica_context()
    strategy = tf.distribute.get_strategy()
    if (
        context.num_replicas_in_sync > 1
        and not all("GPU" in d for d in strategy.extended.worker_devices)
        and tensorflow_internals.is_compiled()
    ):
        raise ValueError(
            f"{type(strategy).__name__} on CPUs and `jit_compile=True` must "
            "not be combined, because XLA compiles for one device and cannot "
            "sum over CPUs; float32 fails as well. Compile the model with "
            "`jit_compile=False`; the optimizer's own update is compiled "
            "nevertheless. Received: a step inside a compiled function with "
            f"{context.num_replicas_in_sync} replicas."
        )


def colocated(variable: Any) -> Any:
    """Returns a scope in which variables are made where another one is.

    Args:
        variable: A Keras variable.
    """
    strategy = tf.distribute.get_strategy()
    return strategy.extended.colocate_vars_with(variable.value)


def outside_of_traces() -> contextlib.AbstractContextManager[Any]:
    """Returns a scope in which variables are made with values of others.

    In the trace of a function they would get them when it is called, and XLA
    compiles no function that makes variables. Under a strategy it is no scope:
    replicas make variables together, and only where they are.
    """
    if keras.backend.backend() != "tensorflow" or is_distributed():
        return contextlib.nullcontext()
    return tf.init_scope()


def is_distributed() -> bool:
    """Returns whether variables may have a component for each replica."""
    return (
        keras.backend.backend() == "tensorflow" and tf.distribute.has_strategy()
    )


def is_a_strategy(strategy: Any) -> bool:
    """Returns whether this is a strategy, and not the lack of one."""
    with strategy.scope():
        return tf.distribute.has_strategy()


def summed(gradients: Sequence[Gradient], dtype: str | None) -> list[Gradient]:
    """Returns the gradients summed over all replicas, the same on each.

    Args:
        gradients: Those of this replica: dense, sparse or `None`.
        dtype: What travels between replicas. A sum in 16 bits can overflow
            where no summand does, so inf and nan are looked for afterwards.
            `None` for the gradients' own dtypes.
    """
    gradients = list(gradients)
    if not is_distributed():
        return gradients
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    present = [g for g in gradients if g is not None]
    sent = [gradient_lists.cast(g, dtype or g.dtype) for g in present]
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sent)
    widened = iter(
        gradient_lists.cast(s, g.dtype if dtype is None else _wide(g.dtype))
        for s, g in zip(sums, present, strict=True)
    )
    return [None if g is None else next(widened) for g in gradients]


def _wide(dtype: Any) -> Any:
    """Returns at least float32, so that a 16-bit sum is unscaled there."""
    return keras.backend.result_type(tf.as_dtype(dtype).name, "float32")


def on_any_replica(found_inf: Tensor) -> Tensor:
    """Returns whether `found_inf` is true on any replica, on each of them."""
    if not is_distributed():
        return found_inf
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return found_inf
    # `all_reduce` knows SUM and MEAN only. At most one per replica.
    count = context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(found_inf, tf.float32)
    )
    return count > 0


def assign(variable: Any, value: Tensor) -> None:
    """Writes a value that is the same on every replica.

    Args:
        variable: A Keras variable; each replica writes to its component, so
            that a loop and a branch may do it. From outside of the replicas
            all components are written.
        value: A tensor of its shape and dtype.
    """
    held = keras_internals.held_variable(variable)
    if is_distributed() and not tf.distribute.in_cross_replica_context():
        component_on_this_replica(held).assign(value)
    else:
        variable.assign(value)


def component_on_this_replica(variable: Any) -> Any:
    """Returns the component that the calling replica has of a variable.

    Args:
        variable: A `tf.Variable`, mirrored or not.

    Raises:
        ValueError: If the variable does not have one for each replica.
    """
    if not is_distributed():
        return variable
    strategy = tf.distribute.get_strategy()
    context = tf.distribute.get_replica_context()
    components = strategy.experimental_local_results(variable)
    local_count = len(strategy.extended.worker_devices)
    if len(components) != local_count:
        raise ValueError(
            "The optimizer and the model must be made in the scope of the "
            "strategy, because each replica needs a copy of every variable; "
            "put `with strategy.scope():` around both. Received: a variable "
            f"without copies: {variable!r}"
        )
    if local_count == 1:
        return components[0]
    # Workers have equally many replicas, numbered one after another.
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica is None:  # inside a function compiled for this device
        devices = strategy.extended.worker_devices
        replica = devices.index(tf.nest.flatten(context.devices)[0])
    return components[replica % local_count]
