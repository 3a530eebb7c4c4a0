"""Fails if Keras moves what conversion reads without a public name."""

import keras
import numpy as np

from tf_mixprec.conversion import keras_internals


def test_the_history_of_a_tensor():
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(1)
    output = layer(inputs)
    assert keras_internals.operation_of(output) is layer
    assert keras_internals.inputs_of(output) == [inputs]
    total = output + inputs
    assert not isinstance(keras_internals.operation_of(total), keras.Layer)
    assert keras_internals.inputs_of(total) == [output, inputs]


def test_traces_are_made_again():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((1, 1))
    model.fit(x, x, verbose=0)
    model.predict(x, verbose=0)
    former = model.train_function, model.predict_function
    keras_internals.forget_traces(model)
    model.fit(x, x, verbose=0)
    model.predict(x, verbose=0)
    assert model.train_function is not former[0]
    assert model.predict_function is not former[1]
    assert None not in (model.train_function, model.predict_function)
