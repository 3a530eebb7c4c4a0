"""What is read and set through the wrapper is the inner optimizer's."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def apply(optimizer, gradient, variable):
    gradient = tf.constant(gradient) * optimizer.scale_loss(1.0)
    optimizer.apply([gradient], [variable])


# Every setting that the base class of all Keras optimizers knows.
BASE_SETTINGS = set(
    inspect.signature(keras.optimizers.Optimizer.__init__).parameters
) - {"self", "args", "kwargs", "name", "loss_scale_factor"}
if not BASE_SETTINGS:  # the TensorFlow class forwards `*args, **kwargs`
    BASE_SETTINGS = set(keras.optimizers.SGD(0.1).get_config()) - {
        "loss_scale_factor",
        "momentum",
        "name",
        "nesterov",
    }


@pytest.mark.parametrize("name", sorted(BASE_SETTINGS))
def test_every_base_setting_reaches_the_inner_optimizer(name):
    values = {"learning_rate": 0.25, "use_ema": True, "ema_momentum": 0.5}
    value = values.get(name, 3)
    inner = keras.optimizers.SGD(0.1)
    optimizer = mp.wrap(inner)
    setattr(optimizer, name, value)
    assert float(getattr(inner, name)) == value
    assert float(getattr(optimizer, name)) == value


def test_settings_of_the_optimizer_class_are_read_and_set():
    optimizer = mp.wrap(keras.optimizers.Adam(beta_1=0.8))
    assert optimizer.beta_1 == 0.8
    optimizer.beta_1 = 0.7
    assert optimizer.inner_optimizer.beta_1 == 0.7
    with pytest.raises(AttributeError, match="momentum"):
        _ = optimizer.momentum
    optimizer.remark = "mine"  # the inner one has no such attribute
    assert not hasattr(optimizer.inner_optimizer, "remark")


def test_a_clipnorm_set_through_the_wrapper_clips_unscaled_gradients():
    variable = keras.Variable([0.0, 0.0])
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    optimizer.clipnorm = 1.0
    apply(optimizer, [3.0, 4.0], variable)
    np.testing.assert_allclose(variable.numpy(), [-0.6, -0.8], rtol=1e-6)


def test_learning_rate_schedules_count_updates():
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = mp.wrap(keras.optimizers.SGD(schedule))
    variable = keras.Variable(0.0)
    for gradient, weight in [(1.0, -1.0), (np.nan, -1.0), (1.0, -1.5)]:
        apply(optimizer, gradient, variable)
        assert float(variable) == weight
    assert float(optimizer.learning_rate) == 0.25


def test_iterations_can_be_set():
    for steps, counter in ((None, 7), (4, 28)):
        optimizer = mp.wrap(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
        )
        optimizer.iterations = 7
        assert int(optimizer.iterations) == 7
        assert int(optimizer.inner_optimizer.variables[0]) == counter


def test_moving_averages():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    )
    assert optimizer.use_ema
    for gradient in (1.0, np.inf, 1.0):
        apply(optimizer, gradient, variable)
    assert float(variable) == -1.0
    optimizer.finalize_variable_values([variable])
    assert float(variable) == -0.5


def test_building_does_not_double_the_inner_optimizers_state():
    settings = {"use_ema": True, "gradient_accumulation_steps": 2}
    variables = [keras.Variable([1.0, 2.0])]
    bare = keras.optimizers.Adam(0.1, **settings)
    bare.build(variables)
    optimizer = mp.wrap(keras.optimizers.Adam(0.1, **settings))
    optimizer.build(variables)
    own = len(mp.LossScaleState._fields)
    assert len(optimizer.variables) == own + len(bare.variables)


def test_there_is_one_learning_rate_and_one_iteration(tmp_path):
    optimizer = mp.wrap(keras.optimizers.SGD(0.25))
    names = [v.path.split("/")[-1] for v in optimizer.variables]
    assert names.count("learning_rate") == names.count("iteration") == 1
    assert names[: len(mp.LossScaleState._fields)] == list(
        mp.LossScaleState._fields
    )
    # Neither has the list of tracked variables, nor a checkpoint.
    assert len(optimizer._variables) == 2
    checkpoint = tf.train.Checkpoint(optimizer=optimizer)
    saved = checkpoint.save(str(tmp_path / "checkpoint"))
    keys = [key for key, _ in tf.train.list_variables(saved)]
    assert sum("learning_rate" in key for key in keys) == 1
    assert sum("iteration" in key for key in keys) == 1


def test_keras_names_are_the_same_variables():
    optimizer = mp.wrap("sgd")
    assert optimizer.dynamic_scale is optimizer.loss_scale
    assert optimizer.step_counter is optimizer.good_steps
    assert optimizer.dynamic is True


def test_apply_gradients_returns_the_iterations():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(keras.optimizers.SGD(0.1))
    for i in range(1, 4):
        scale = optimizer.scale_loss(1.0)
        returned = optimizer.apply_gradients([(scale, variable)])
        assert int(returned) == int(optimizer.iterations) == i
    assert int(optimizer.apply_gradients([])) == 3


def test_a_missing_attribute_is_not_looked_for_forever():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = mp.wrap("sgd").no_such_thing
    with pytest.raises(AttributeError, match="inner_optimizer"):
        _ = object.__new__(mp.LossScaleOptimizer).inner_optimizer


def test_weight_decay_exclusion_reaches_the_inner_optimizer():
    variable = keras.Variable(1.0, name="bias")
    optimizer = mp.wrap(keras.optimizers.SGD(1.0, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    apply(optimizer, 0.0, variable)
    assert float(variable) == 1.0
