"""Models that an audit finds something in, and the same ones mended."""

import keras
from keras import ops

import tf_mixprec as mp

L = keras.layers


def chain(*layers, shape=(16,)):
    """Returns a `Sequential` with its inputs known."""
    return keras.Sequential([keras.Input(shape), *layers], name="chain")


def narrow(width=16, dtype="float16", **options):
    return L.Dense(width, dtype=f"mixed_{dtype}", **options)


def head(**options):
    return L.Dense(8, dtype="float32", name="head", **options)


def compiled(model, optimizer=None, **options):
    """Returns the model, compiled by Keras and with no loss scale of its."""
    optimizer = optimizer or keras.optimizers.SGD()
    options = {"loss": "mse", "auto_scale_loss": False, **options}
    model.compile(optimizer, **options)
    return model


def safe(model, optimizer="sgd", **options):
    """Returns the model, compiled by us."""
    mp.compile(model, optimizer, "mse", **options)
    return model


class Function(L.Layer):
    """Computes a function of its inputs."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


def function(f, dtype="float16"):
    return Function(f, dtype=f"mixed_{dtype}", name="function")


class OwnLoss(keras.Model):
    """A subclassed model with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.dense = narrow(name="dense")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, y=None, y_pred=None, **arguments):
        return ops.mean(ops.square(y_pred))


class Branching(keras.Model):
    """A subclassed model with an `if` over a tensor and two inputs."""

    def __init__(self):
        super().__init__()
        self.first = narrow(32, name="first")
        self.second = narrow(8, name="second")

    def build(self, shapes):
        self.first.build(shapes["a"])
        self.second.build((*shapes["b"][:-1], shapes["b"][-1] + 32))
        self.built = True

    def call(self, inputs):
        x = self.first(inputs["a"])
        if ops.sum(x) > 0.0:
            x = x * 2.0
        return self.second(ops.concatenate([x, inputs["b"]], axis=-1))


def convolutional():
    """Returns a small network of the kind of a ResNet."""
    inputs = keras.Input((32, 32, 3))
    x = L.Rescaling(1 / 255)(inputs)
    x = L.Conv2D(16, 3, padding="same", activation="relu")(x)
    for width in (16, 32):
        y = L.BatchNormalization()(x)
        y = L.Conv2D(width, 3, padding="same", use_bias=False)(L.ReLU()(y))
        x = L.Add()([y, L.Conv2D(width, 1)(x)])
        x = L.MaxPooling2D()(x)
    x = L.Dropout(0.1)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


def transformer():
    """Returns an encoder of one block over words."""
    inputs = keras.Input((24,), dtype="int32")
    x = L.Embedding(64, 32, mask_zero=True)(inputs)
    y = L.MultiHeadAttention(2, 16)(x, x)
    x = L.LayerNormalization()(L.Add()([x, y]))
    y = L.Dense(32)(L.Dense(64, activation="gelu")(x))
    x = L.LayerNormalization()(L.Add()([x, y]))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def recurrent():
    """Returns two inputs, recurrent layers, and two outputs."""
    sequence = keras.Input((12, 16), name="sequence")
    facts = keras.Input((8,), name="facts")
    x = L.Bidirectional(L.LSTM(16, return_sequences=True))(sequence)
    x = L.Concatenate()([L.GRU(16)(x), L.Dense(16)(facts)])
    outputs = {
        "label": L.Dense(1, activation="sigmoid")(x),
        "number": L.Dense(1)(x),
    }
    return keras.Model({"sequence": sequence, "facts": facts}, outputs)


CLEAN = {
    "convolutional": convolutional,
    "transformer": transformer,
    "recurrent": recurrent,
}
