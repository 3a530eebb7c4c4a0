"""Models in which faults can be planted, and faults.

Each model has the inputs `x` and `wide`, layers named `first`, `middle` and
`last`, and the layer `mean`, a plain mean of `wide` in the compute dtype. The
loss takes the logarithm of probabilities times `Faults.keep`.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

CLASSES = 3
ROWS = 4


@keras.saving.register_keras_serializable(package="faulty")
class Mean(keras.layers.Layer):
    """A mean over all but the first axis, as the compute dtype has it."""

    def call(self, x):
        return tf.reduce_mean(x, axis=[1, 2])[:, None]


@keras.saving.register_keras_serializable(package="faulty")
class Block(keras.layers.Layer):
    """Attention and a dense layer, each around a residual connection."""

    def __init__(self, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
        self.dense = keras.layers.Dense(8, name=inner or "dense")

    def call(self, x):
        normal = self.norm(x)
        x = x + self.attention(normal, normal)
        return x + self.dense(x)


def _end(features, wide):
    mean = Mean(name="mean")(wide)
    features = keras.layers.Dense(8, name="last")(features)
    features = features + mean
    return keras.layers.Dense(CLASSES, name="head", dtype="float32")(features)


def _inputs(shape):
    return keras.Input(shape, name="x"), keras.Input((None, 1), name="wide")


def make_cnn():
    x, wide = inputs = _inputs((8, 8, 2))
    y = keras.layers.Conv2D(4, 3, activation="relu", name="first")(x)
    y = keras.layers.BatchNormalization(name="bn")(y)
    y = keras.layers.Conv2D(4, 3, name="middle")(y)
    y = keras.layers.Flatten()(y)
    return keras.Model(inputs, _end(y, wide))


def make_nested():
    x, wide = inputs = _inputs((6,))
    inner_in = keras.Input((8,))
    inner_out = keras.layers.Dense(8, "relu", name="middle")(inner_in)
    inner = keras.Model(inner_in, inner_out, name="inner")
    y = keras.layers.Dense(8, "relu", name="first")(x)
    y = inner(y)
    return keras.Model(inputs, _end(y, wide))


class Subclassed(keras.Model):
    """Calls its layers itself."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(8, "relu", name="first")
        self.middle = keras.layers.Dense(8, "relu", name="middle")
        self.last = keras.layers.Dense(8, name="last")
        self.mean = Mean(name="mean")
        self.head = keras.layers.Dense(CLASSES, name="head", dtype="float32")

    def call(self, inputs):
        y = self.last(self.middle(self.first(inputs["x"])))
        return self.head(y + self.mean(inputs["wide"]))


def make_transformer():
    x, wide = inputs = _inputs((6, 8))
    y = keras.layers.Dense(8, name="first")(x)
    y = Block("middle", name="block")(y)
    y = keras.layers.Flatten()(y)
    return keras.Model(inputs, _end(y, wide))


def make_lstm():
    x, wide = inputs = _inputs((5, 4))
    y = keras.layers.Masking()(x)
    y = keras.layers.Dense(4, name="first")(y)
    y = keras.layers.LSTM(6, return_sequences=True, name="lstm")(y)
    y = keras.layers.Dense(8, name="middle")(y)
    y = keras.layers.LSTM(6, name="lstm_end")(y)
    return keras.Model(inputs, _end(y, wide))


def make_shared():
    """A layer that is called twice, and two outputs."""
    x, wide = inputs = _inputs((8,))
    first = keras.layers.Dense(8, "relu", name="first")
    middle = keras.layers.Dense(8, name="middle")
    y = middle(first(x))
    y = middle(y)
    other = keras.layers.Dense(CLASSES, name="other", dtype="float32")(y)
    return keras.Model(inputs, [_end(y, wide), other])


MODELS = {
    "cnn": (make_cnn, (8, 8, 2), "middle"),
    "nested": (make_nested, (6,), "inner/middle"),
    "subclassed": (Subclassed, (6,), "middle"),
    "transformer": (make_transformer, (6, 8), "block/middle"),
    "lstm": (make_lstm, (5, 4), "middle"),
    "shared": (make_shared, (8,), "middle"),
}


class KeptLoss:
    """Cross entropy of probabilities times `keep`, which is 1 or 0."""

    def __init__(self):
        self.keep = tf.Variable(1.0, trainable=False)
        self.__name__ = "kept"

    def __call__(self, y, logits):
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32)) * self.keep
        y = tf.reshape(tf.cast(y, tf.int32), [-1])
        chosen = tf.gather(probabilities, y, batch_dims=1)
        return -tf.math.log(chosen)


@dataclasses.dataclass
class Case:
    """A model, its loss, good data, and where its middle layer is."""

    model: keras.Model
    loss: KeptLoss
    x: dict
    y: object
    middle: str

    def middle_layer(self):
        layer = self.model
        for name in self.middle.split("/"):
            layer = {e.name: e for e in parts(layer)}[name]
        return layer


def parts(layer):
    return list(layer._flatten_layers(include_self=False, recursive=False))


def make_case(name, dtype):
    """Returns a model of `MODELS` under a mixed policy, not compiled."""
    make, shape, middle = MODELS[name]
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    model = make()
    rng = np.random.default_rng(0)
    x = {
        "x": rng.normal(size=(ROWS, *shape)).astype("float32"),
        "wide": np.ones((ROWS, 3, 1), "float32"),
    }
    y = rng.integers(0, CLASSES, ROWS)
    model({k: tf.constant(v) for k, v in x.items()})
    if len(model.outputs if hasattr(model, "outputs") else [0]) > 1:
        y = [y, y]
    return Case(model, KeptLoss(), x, y, middle)
