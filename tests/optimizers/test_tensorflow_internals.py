"""The private part of TensorFlow that we use is where we look for it."""

import keras
import pytest
import strategies
import tensorflow as tf

from tf_mixprec.optimizers import tensorflow_internals
from tf_mixprec.optimizers.remainder_variable import RemainderVariable


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_compiled_function_is_known_while_it_is_traced(jit_compile):
    seen = []

    @tf.function(jit_compile=jit_compile)
    def outer():
        seen.append(tensorflow_internals.is_compiled())

        @tf.function
        def inner():
            seen.append(tensorflow_internals.is_compiled())
            return tf.constant(1.0)

        return inner()

    outer()
    assert seen == [jit_compile, jit_compile]
    assert not tensorflow_internals.is_compiled()


@pytest.mark.parametrize("jit_compile", [True, False])
def test_it_is_known_on_each_replica(jit_compile):
    strategy = strategies.make("mirrored_2")
    seen = []

    @tf.function(jit_compile=jit_compile)
    def replica():
        seen.append(tensorflow_internals.is_compiled())
        return tf.constant(1.0)

    tf.function(lambda: strategy.run(replica))()
    assert seen == [jit_compile, jit_compile]


def test_a_checkpoint_asks_a_variable_what_to_save(tmp_path):
    weight = keras.Variable([1.0, -3.0], dtype="bfloat16")
    remainder = RemainderVariable(weight, "remainder")
    remainder.assign([5, -6])
    path = tf.train.Checkpoint(r=remainder).save(tmp_path / "checkpoint")
    ((name, shape),) = [
        each
        for each in tf.train.list_variables(path)
        if each[0].startswith("r/")
    ]
    assert shape == [2]
    expected = [1 + 5 * 2.0**-23, -3 + 6 * 2.0**-22]
    saved = tf.train.load_variable(path, name)
    assert saved.dtype == "float32"
    assert saved.tolist() == expected
    remainder.assign([0, 0])
    tf.train.Checkpoint(r=remainder).restore(path).assert_consumed()
    assert remainder.numpy().tolist() == [5, -6]
