"""The private parts of Keras that we use are where we look for them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.optimizers import keras_internals


def make(optimizer=None):
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    optimizer = optimizer or keras.optimizers.Adam(0.5)
    optimizer.build(variables)
    return optimizer, variables


def test_a_keras_variable_holds_what_it_is_given():
    _, (variable, other) = make()
    held = keras_internals.held_variable(variable)
    assert isinstance(held, tf.Variable)
    assert keras_internals.held_variable(held) is held
    stand_in = tf.Variable([7.0, 8.0])
    raw = tf.Variable(0.0)
    with keras_internals.holding({id(variable): stand_in}, [variable, raw]):
        assert variable.value is stand_in
        assert variable.numpy().tolist() == [7.0, 8.0]
        variable.assign([5.0, 6.0])
        assert (variable + 1.0).numpy().tolist() == [6.0, 7.0]
    assert stand_in.numpy().tolist() == [5.0, 6.0]
    assert variable.numpy().tolist() == [1.0, 2.0]
    with (
        pytest.raises(ZeroDivisionError),
        keras_internals.holding({id(other): stand_in}, [other]),
    ):
        _ = 1 / 0
    assert other.numpy().tolist() == [3.0]


def test_an_optimizer_knows_its_variables_by_key():
    optimizer, variables = make()
    known = keras_internals.trainable_variables(optimizer)
    assert [id(v) for v in known] == [id(v) for v in variables]
    keys = [keras_internals.key_of(optimizer, v) for v in variables]
    assert len(set(keys)) == 2
    raw = keras_internals.held_variable(variables[0])
    assert keras_internals.key_of(optimizer, raw) == keys[0]


def test_an_optimizer_asks_its_strategy_attribute():
    optimizer, (variable, _) = make(keras.optimizers.SGD(1.0))
    calls = []

    class Extended:
        def update(self, variable, function, args=(), group=True):
            calls.append(variable)
            function(variable, *args)

    class Strategy:
        extended = Extended()

    with keras_internals.without_distribution(optimizer, Strategy()):
        optimizer.apply([tf.ones(2)], [variable])
    assert len(calls) == 1
    assert variable.numpy().tolist() == [0.0, 1.0]
    optimizer.apply([tf.ones(2)], [variable])
    assert len(calls) == 1


def test_an_optimizer_clips_by_its_clip_method():
    optimizer, (variable, _) = make(
        keras.optimizers.SGD(1.0, global_clipnorm=2.0)
    )
    with keras_internals.clipping_by(optimizer, tf.constant(8.0)):
        optimizer.apply([tf.ones(2)], [variable])
    np.testing.assert_array_equal(variable.numpy(), [0.75, 1.75])
    optimizer.apply([tf.ones(2)], [variable])  # its own norm is below 2
    np.testing.assert_array_equal(variable.numpy(), [-0.25, 0.75])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"gradient_accumulation_steps": 2}, True),
        ({"use_ema": True}, False),
        ({"use_ema": True, "ema_overwrite_frequency": 3}, True),
    ],
    ids=str,
)
def test_branches_of_an_update_are_known(settings, expected):
    optimizer = keras.optimizers.SGD(0.1, **settings)
    assert bool(keras_internals.has_branches(optimizer)) is expected


def test_settings_change_with_what_an_update_is_traced_with():
    optimizer, _ = make()
    before = keras_internals.settings(optimizer)
    assert keras_internals.settings(optimizer) == before
    optimizer.learning_rate = 0.25  # a variable, read anew each step
    assert keras_internals.settings(optimizer) == before
    for name, value in (("clipnorm", 1.0), ("beta_1", 0.5)):
        setattr(optimizer, name, value)
        after = keras_internals.settings(optimizer)
        assert after != before
        before = after


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
def test_the_optimizers_in_a_multi_optimizer_are_found():
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.Adam(global_clipnorm=1.0), {".*x": accumulating}
        )
    )
    assert keras_internals.has_branches(optimizer)
    assert keras_internals.global_clipnorm(optimizer) is None
    alone = keras.optimizers.Adam(global_clipnorm=1.0)
    assert keras_internals.global_clipnorm(alone) == 1.0


def test_a_variable_says_the_dtype_that_its_slots_get():
    variable = keras.Variable([1.0, 2.0], dtype="bfloat16")
    optimizer = keras.optimizers.Adam()
    with keras_internals.seen_as("float32", [variable]):
        assert variable.dtype == "float32"
        optimizer.build([variable])
    assert variable.dtype == "bfloat16"
    slots = optimizer.variables[2:]
    assert [slot.dtype for slot in slots] == ["float32"] * 2
    stand_in = tf.Variable([7.0, 8.0])
    with keras_internals.holding({id(variable): stand_in}, [variable]):
        assert variable.dtype == "float32"
        assert (variable * 0.1).dtype == tf.float32
    assert variable.dtype == "bfloat16"


def test_moving_averages_are_found_by_key():
    optimizer, variables = make(keras.optimizers.SGD(1.0, use_ema=True))
    optimizer.apply([tf.ones(2), tf.ones(1)], variables)
    averages = keras_internals.moving_averages(optimizer)
    for variable in variables:
        average = averages[keras_internals.key_of(optimizer, variable)]
        np.testing.assert_array_equal(average.numpy(), variable.numpy())
    assert keras_internals.moving_averages(keras.optimizers.SGD()) == {}


def test_the_optimizer_that_updates_is_found_in_its_wrappers():
    inner = keras.optimizers.SGD()
    wrapped = mp.wrap(mp.MasterWeightOptimizer(inner))
    assert keras_internals.updating(wrapped) is inner
    assert keras_internals.updating(inner) is inner
