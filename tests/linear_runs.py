"""A linear model in `fit`, by every way to train, and in NumPy.

Inputs are of shape (2,). Some batches have nan, and their steps are skipped.
"""

import keras
import numpy as np
import strategies
import tensorflow as tf

import tf_mixprec as mp

BATCH = 4
BATCHES = 6
BAD = (1, 4)  # of the batches of an epoch
RATE = 2.0**-5
START = np.array([[1.0], [-2.0]], "float32")

X = np.random.default_rng(0).normal(size=(BATCH * BATCHES, 2))
X = X.astype("float32")
Y = (X @ np.float32([[3.0], [1.0]]) + 0.5).astype("float32")
BAD_X = X.copy()
for _batch in BAD:
    BAD_X[_batch * BATCH] = np.nan


def make_model(policy="float32"):
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(1, use_bias=False, name="only", dtype=policy),
        ],
        name="linear",
    )
    model.set_weights([START])
    return model


def compiled(optimizer, policy="float32", **options):
    model = make_model(policy)
    mp.compile(model, optimizer, "mse", **{"jit_compile": False, **options})
    return model


def of_a_step(optimizer, policy="float32", **options):
    return mp.TrainStep(
        make_model(policy),
        optimizer,
        "mse",
        **{"jit_compile": False, **options},
    ).model


def under_xla(optimizer, policy):
    model = compiled(optimizer, policy, jit_compile=True)
    # XLA cannot make the masters of 16-bit variables.
    model.optimizer.build(model.trainable_variables)
    return model


def on_replicas(optimizer, policy="float32"):
    with strategies.make("mirrored_2").scope():
        return compiled(optimizer(), policy)


# From a function that makes the optimizer to a model.
WAYS = {
    "graph": lambda make, policy: compiled(make(), policy),
    "xla": lambda make, policy: under_xla(make(), policy),
    "eager": lambda make, policy: compiled(make(), policy, run_eagerly=True),
    "step": lambda make, policy: of_a_step(make(), policy),
    "step_xla": lambda make, policy: of_a_step(
        make(), policy, jit_compile=True
    ),
    "micro_batches": lambda make, policy: of_a_step(
        make(), policy, accumulation_steps=2
    ),
    "replicas": on_replicas,
}


def fit(model, *callbacks, x=BAD_X, epochs=3, **options):
    """Returns the history of some epochs."""
    history = model.fit(
        x,
        Y,
        batch_size=BATCH,
        epochs=epochs,
        callbacks=list(callbacks),
        **{"shuffle": False, "verbose": 0, **options},
    )
    return history.history


def gradient(weight, batch, x=BAD_X):
    """Returns the gradient of the loss of one batch, in float64."""
    part = slice(batch * BATCH, (batch + 1) * BATCH)
    inputs = x[part].astype("float64")
    return 2 * inputs.T @ (inputs @ weight - Y[part]) / BATCH


def traces_of(model):
    """Returns a list that grows with every trace of the model."""
    traces = []
    original = model.call

    def call(*args, **kwargs):
        if not tf.executing_eagerly():
            traces.append(1)
        return original(*args, **kwargs)

    object.__setattr__(model, "call", call)
    return traces
