"""`mp.policy_scope`: restored on every way out, sublayers included."""

import threading

import keras
import numpy as np
import pytest

import tf_mixprec as mp


class Block(keras.layers.Layer):
    """A layer whose sublayers are made without `dtype`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def test_layers_and_sublayers_follow():
    with mp.policy_scope("mixed_bfloat16") as policy:
        block = Block()
        attention = keras.layers.MultiHeadAttention(1, 2)
        given = keras.layers.Dense(1, dtype="float32")
    assert policy == mp.Policy("mixed_bfloat16")
    assert block.dense.compute_dtype == block.compute_dtype == "bfloat16"
    assert attention.compute_dtype == "bfloat16"
    assert given.compute_dtype == "float32"
    assert keras.layers.Dense(1).compute_dtype == "float32"


@mp.policy_scope("bfloat16")
def make_and_raise():
    assert keras.layers.Dense(1).variable_dtype == "bfloat16"
    raise RuntimeError


def test_nesting_and_exceptions_restore():
    before = keras.config.dtype_policy()
    with mp.policy_scope("mixed_float16"):
        with pytest.raises(RuntimeError):
            make_and_raise()
        assert keras.layers.Dense(1).compute_dtype == "float16"
    assert keras.config.dtype_policy() is before


def test_a_policy_of_keras_is_taken_as_it_is():
    policy = keras.DTypePolicy("mixed_float16")
    with mp.policy_scope(policy):
        assert keras.layers.Dense(1).dtype_policy is policy


def test_a_wrong_policy_changes_nothing():
    before = keras.config.dtype_policy()
    with pytest.raises(ValueError, match="float61"):
        mp.policy_scope("float61").__enter__()
    assert keras.config.dtype_policy() is before


def test_each_thread_has_its_own():
    inside, checked = threading.Event(), threading.Event()
    seen = []

    def other():
        with mp.policy_scope("mixed_float16"):
            inside.set()
            checked.wait(10)
            seen.append(keras.layers.Dense(1).compute_dtype)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    seen.append(keras.layers.Dense(1).compute_dtype)
    checked.set()
    thread.join()
    assert seen == ["float32", "float16"]


def test_an_output_dtype_reaches_the_sublayers_end():
    with mp.policy_scope("p=f32,c=bf16,o=f32"):
        block = Block()
    assert block(np.ones((1, 2))).dtype == "float32"
    assert block.dense.compute_dtype == "bfloat16"
