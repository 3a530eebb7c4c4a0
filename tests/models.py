"""Small models and data that the tests train."""

import keras
import numpy as np


def regression_data(size=32):
    """Returns inputs of shape (size, 4) and their sums."""
    x = np.random.default_rng(0).random((size, 4), "float32")
    return x, x.sum(axis=1, keepdims=True)


def make_mlp(optimizer=None, policy="mixed_float16", **compile_options):
    """Returns a small network with a float32 head, compiled if asked to."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu", name="hidden"),
            keras.layers.Dense(1, dtype="float32", name="head"),
        ],
        name="mlp",
    )
    if optimizer is not None:
        model.compile(optimizer, "mse", **compile_options)
    return model
