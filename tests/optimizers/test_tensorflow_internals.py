"""The private part of TensorFlow that we use is where we look for it."""

import pytest
import strategies
import tensorflow as tf

from tf_mixprec.optimizers import tensorflow_internals


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
