"""Every optimizer of Keras in every setting, to compare ours with."""

import inspect

import keras
import numpy as np
import pytest

_NOT_ALONE = ("LossScaleOptimizer", "MultiOptimizer", "Optimizer")


def _runs(optimizer_class):
    """Returns whether this Keras can run its own optimizer on TensorFlow.

    Muon of Keras 3.12 cannot: it asks a `tf.Variable` for its `path`.
    """
    try:
        variable = keras.Variable(np.ones((2, 2), "float32"))
        optimizer_class(0.1).apply([np.ones((2, 2), "float32")], [variable])
    except AttributeError as error:
        return optimizer_class.__name__ != "Muon" or "path" not in str(error)
    return True


CLASSES = sorted(
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and name not in _NOT_ALONE
    and _runs(value)
)

SETTINGS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.3},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.01},
    "ema": {
        "use_ema": True,
        "ema_momentum": 0.7,
        "ema_overwrite_frequency": 2,
    },
    "accumulation": {"gradient_accumulation_steps": 2},
}

# Shapes of the variables: a matrix, a vector, a scalar and an empty one.
SHAPES = ((4, 3), (5,), (), (0,))

ALL = pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(name, setting, id=f"{name}_{setting}")
        for name in CLASSES
        for setting in SETTINGS
    ],
)


def make(name, setting):
    """Returns the optimizer with a large learning rate."""
    optimizer_class = getattr(keras.optimizers, name)
    return optimizer_class(learning_rate=0.1, **SETTINGS[setting])


def make_variables(seed=0):
    """Returns trainable float32 variables with normal values."""
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=shape).astype("float32"))
        for shape in SHAPES
    ]


def make_gradients(step):
    """Returns float32 gradients that include large, tiny and zero ones."""
    rng = np.random.default_rng(100 + step)
    gradients = [rng.normal(size=s).astype("float32") for s in SHAPES]
    gradients[1] *= np.array([1, 1e-6, 0, -1e-9, 1e3], "float32")
    return gradients


def snapshot(optimizer, variables):
    """Returns the values of the weights and of the optimizer's variables."""
    return [v.numpy() for v in [*variables, *optimizer.variables]]
