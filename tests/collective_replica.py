"""One worker of a strategy that sums with collectives; a script of its own.

Its one argument is the name of the strategy. Prints one line of JSON.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

SIZE = 2**15  # large enough to be compiled


def make_strategy():
    if sys.argv[1] == "two_workers":  # who and where says TF_CONFIG
        return tf.distribute.MultiWorkerMirroredStrategy()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


STRATEGY = make_strategy()


def run(inner, bad_steps, **options):
    """Trains five steps; the last replica has a NaN in some of them."""
    with STRATEGY.scope():
        variable = keras.Variable(np.ones(SIZE, "float32"))
        optimizer = mp.wrap(inner(), initial_scale=8.0, **options)
        optimizer.build([variable])

    @tf.function
    def step(bad):
        def replica():
            context = tf.distribute.get_replica_context()
            index = tf.cast(context.replica_id_in_sync_group, tf.float32)
            nan = tf.where((index == 1.0) & bad, np.nan, 0.0)
            # 1 on the first replica, 3 on the other.
            gradient = tf.fill([SIZE], 1.0 + 2.0 * index + nan)
            optimizer.apply([gradient * optimizer.scale_loss(1.0)], [variable])

        STRATEGY.run(replica)

    graph = step.get_concrete_function(tf.constant(False)).graph
    for i in range(5):
        step(tf.constant(i in bad_steps))
    copies = STRATEGY.experimental_local_results(variable.value)
    return {
        "copies": [sorted({float(x) for x in c.numpy()}) for c in copies],
        "scale": float(optimizer.loss_scale.numpy()),
        "skipped": int(optimizer.skipped_steps.numpy()),
        "iterations": int(optimizer.iterations.numpy()),
        "sent": sorted(
            {
                operation.get_attr("T").name
                for operation in graph.get_operations()
                if operation.type == "CollectiveReduceV2"
            }
        ),
    }


def refused():
    """Returns why a step in a compiled function is refused."""
    with STRATEGY.scope():
        variable = keras.Variable(1.0)
        optimizer = mp.wrap(keras.optimizers.SGD(1.0))
        optimizer.build([variable])
    replica = tf.function(
        lambda: optimizer.apply([optimizer.scale_loss(1.0)]), jit_compile=True
    )
    try:
        tf.function(lambda: STRATEGY.run(replica))()
    except ValueError as error:
        return str(error)
    return ""


sys.stdout.write(
    json.dumps(
        {
            "sgd": run(lambda: keras.optimizers.SGD(0.25), {2}),
            "branch": run(
                lambda: keras.optimizers.SGD(0.25),
                {0, 3},
                jit_compile=False,
                all_reduce_dtype="bfloat16",
            ),
            "accumulation": run(
                lambda: keras.optimizers.SGD(
                    0.25, gradient_accumulation_steps=2
                ),
                {1},
                all_reduce_dtype="float16",
            ),
            "clipped": run(
                lambda: keras.optimizers.SGD(
                    0.25, global_clipnorm=2.0 * SIZE**0.5
                ),
                {4},
            ),
            "refused": refused(),
        }
    )
)
