"""`stateless_apply` on TensorFlow, which does not have it."""

import keras
import pytest
import tensorflow as tf

import tf_mixprec as mp


def test_tensorflow_refuses_stateless_apply():
    variable = keras.Variable([1.0])
    optimizer = mp.wrap("sgd")
    gradient = tf.constant([1.0])
    with pytest.raises(ValueError, match="must be built"):
        optimizer.stateless_apply([], [gradient], [variable.value])
    optimizer.build([variable])
    values = [v.value for v in optimizer.variables]
    with pytest.raises(ValueError, match="not supported with the TensorFlow"):
        optimizer.stateless_apply(values, [gradient], [variable.value])
