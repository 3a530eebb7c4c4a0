"""Models with layers that 16 bits hurt, and layers that they do not."""

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="weak")
class Cancel(keras.layers.Layer):
    """The difference of two large numbers that are nearly equal."""

    def call(self, x):
        return (x + 1000.0) - 1000.0


@keras.saving.register_keras_serializable(package="weak")
class Phase(keras.layers.Layer):
    """A function of the last digits of a large number."""

    def call(self, x):
        return ops.sin(x + 500.0)


@keras.saving.register_keras_serializable(package="weak")
class Logarithm(keras.layers.Layer):
    """The logarithm of small numbers."""

    def call(self, x):
        return ops.log(1e-30 * (ops.square(x) + 0.1)) + 69.0


@keras.saving.register_keras_serializable(package="weak")
class Overflow(keras.layers.Layer):
    """Squares beyond 65504 inside, and what is returned is about 1."""

    def call(self, x):
        power = ops.mean(ops.square(x * 1000.0), axis=-1, keepdims=True)
        return x * 1000.0 / ops.sqrt(power + 1.0)


@keras.saving.register_keras_serializable(package="weak")
class Block(keras.layers.Layer):
    """Code of a user's around a weak layer and a sound one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.weak = Cancel(name="weak")
        self.dense = keras.layers.Dense(16, "tanh", name="dense")

    def call(self, x):
        return x + self.weak(x) + self.dense(x)


@keras.saving.register_keras_serializable(package="weak")
class WeakCode(keras.layers.Layer):
    """Code of a user's that is weak itself, with a sound layer in it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(16, "tanh", name="dense")

    def call(self, x):
        return ((x + self.dense(x)) + 1000.0) - 1000.0


@keras.saving.register_keras_serializable(package="weak")
class Around(keras.layers.Layer):
    """Code of a user's around a layer."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x):
        return x + self.inner(x)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner)
        return {**super().get_config(), "inner": inner}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config["inner"])
        return cls(**{**config, "inner": inner})


WEAK = {
    "float16": {"cancel": Cancel, "logarithm": Logarithm, "overflow": Overflow},
    "bfloat16": {"cancel": Cancel, "logarithm": Logarithm, "phase": Phase},
}


def planted(dtype):
    """Returns a model with ten layers of which three are weak, and a head."""
    first, second, third = WEAK[dtype].items()
    names = iter("abcdefgh")

    def dense():
        return keras.layers.Dense(16, "tanh", name=next(names))

    def weak(item):
        return item[1](name=item[0])

    return keras.Sequential(
        [
            keras.Input((8,)),
            dense(),
            weak(first),
            dense(),
            dense(),
            weak(second),
            dense(),
            dense(),
            weak(third),
            dense(),
            dense(),
            keras.layers.Dense(1, name="head"),
        ],
        name="planted",
    )


def targets(model, x, noise=0.1):
    """Returns what a model says in float32, and noise: its loss is noise**2."""
    predictions = model.predict(x, verbose=0)
    rng = np.random.default_rng(1)
    return predictions + noise * rng.normal(size=predictions.shape)


def inputs(size=192, features=8):
    rng = np.random.default_rng(0)
    return rng.normal(size=(size, features)).astype("float32")
