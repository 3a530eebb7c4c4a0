"""What of Keras's private parts training uses is still there."""

import keras

from tf_mixprec.training import keras_internals


def model_with_losses():
    layer = keras.layers.Dense(1, kernel_regularizer="l2")
    return keras.Sequential([keras.Input((2,)), layer]), layer


def test_layers_inside_of_layers_are_found():
    cell = keras.layers.LSTMCell(2)
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.RNN(cell)])
    found = keras_internals.all_layers(model)
    assert found[0] is model
    assert cell in found


def test_losses_are_replaced_in_a_block():
    model, _ = model_with_losses()
    (loss,) = model.losses
    with keras_internals.losses_replaced(model, [1.0]):
        assert model.losses == [1.0]
    assert float(model.losses[0]) == float(loss)
    with keras_internals.losses_replaced(model, []):
        assert len(model.losses) == 1
