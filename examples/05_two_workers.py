"""Train on two workers, each a process of its own; here on one machine.

Run:
    python examples/05_two_workers.py

It starts itself twice, with a `TF_CONFIG` for each worker. On a cluster every
machine runs `worker` with its own `TF_CONFIG`, and nothing else changes.

The last line is like:
    loss 0.032, loss scale 65536, 3 skipped steps
"""

import argparse
import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_mixprec as mp

EXAMPLES = 1024  # rows of synthetic data
FEATURES = 8  # columns
BATCH_SIZE = 64  # rows a step, over both workers
GROWTH_INTERVAL = 20  # good steps until the loss scale doubles; 2000 in earnest
WORKERS = 2


def make_data() -> tf.data.Dataset:
    """Returns batches of the whole data; each worker takes its share."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)


def make_model() -> keras.Model:
    """Returns a network that computes in float16, with a float32 head."""
    hidden = {"activation": "relu", "dtype": "mixed_float16"}
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(64, **hidden),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def worker(epochs: int) -> None:
    """Trains as one of the workers; the first prints how it ended."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        optimizer = mp.wrap(
            keras.optimizers.Adam(3e-3), growth_interval=GROWTH_INTERVAL
        )
        step = mp.TrainStep(
            make_model(),
            optimizer,
            "mse",
            accumulation_steps=2,  # on each worker
            clip_global_norm=1.0,  # of the sum over workers
            jit_compile=False,  # XLA cannot sum over CPUs
        )
    data = make_data()
    history = mp.fit(
        step, data, epochs=epochs, validation_data=data, verbose=0
    ).history
    if strategy.cluster_resolver.task_id == 0:
        print(
            f"loss {history['val_loss'][-1]:.3f}, "
            f"loss scale {history['loss_scale'][-1]:.0f}, "
            f"{sum(history['skipped'])} skipped steps"
        )


def start_workers(epochs: int) -> str:
    """Starts the workers on this machine, returns what the first prints."""
    sockets = [socket.socket() for _ in range(WORKERS)]
    for each in sockets:
        each.bind(("localhost", 0))
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    processes = []
    for index in range(WORKERS):
        config = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--epochs", str(epochs), "--worker"],
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("A worker has failed; what it printed is above.")
    return outputs[0]


def main(argv: list[str] | None = None) -> None:
    """Trains and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--worker", action="store_true", help="be one of them, by TF_CONFIG"
    )
    arguments = parser.parse_args(argv)
    if arguments.worker:
        worker(arguments.epochs)
    else:
        print(start_workers(arguments.epochs), end="")


if __name__ == "__main__":
    main()
