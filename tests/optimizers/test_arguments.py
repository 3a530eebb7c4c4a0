"""The constructor's arguments, the config, and the numbers set live."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def sgd():
    return keras.optimizers.SGD(0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_scale": 0.0}, "must lie between 2"),
        ({"initial_scale": np.nan}, "must be finite"),
        ({"dynamic_growth_steps": 0}, "must be an int"),
        ({"dynamic_growth_steps": -5}, "must be an int"),
        ({"growth_interval": 0}, "must be an int"),
        ({"growth_factor": 0.5}, "must be above 1"),
        ({"backoff_factor": 2.0}, "must lie strictly between"),
        ({"min_scale": 4.0, "initial_scale": 2.0}, "`min_scale` and"),
        ({"max_scale": 2.0**129}, "must lie between 2"),
        ({"hysteresis": 0}, "must be an int"),
        ({"hysteresis_refill": "x"}, "must be one of"),
        ({"tolerance": 2.0}, "must lie between 0 and 1"),
        ({"dynamic": 1}, "must be True or False"),
        ({"dynamic": None}, "must be True or False"),
        ({"skip_nonfinite": "no"}, "must be True or False"),
        ({"jit_compile": "yes"}, "must be True, False or 'auto'"),
        ({"jit_compile": 1}, "must be True, False or 'auto'"),
        ({"all_reduce_dtype": "float64"}, "must be None, 'float32'"),
        (
            {"growth_interval": 3, "dynamic_growth_steps": 4},
            "must agree",
        ),
        ({"dynamic": False, "growth_factor": 4.0}, "only `initial_scale`"),
        ({"dynamic": False, "min_scale": 2.0}, "only `initial_scale`"),
        ({"dynamic": False, "initial_scale": np.inf}, "must be finite"),
        ({"clipnorm": 1.0}, "on the `inner_optimizer`"),
        ({"learning_rate": 1.0}, "does not support arguments"),
    ],
    ids=str,
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mp.LossScaleOptimizer(sgd(), **arguments)


@pytest.mark.parametrize("inner", ["adam", None, keras.optimizers.SGD, 3])
def test_the_inner_optimizer_must_be_one(inner):
    with pytest.raises(TypeError, match=r"must be a `keras.optimizers"):
        mp.LossScaleOptimizer(inner)


def test_two_names_for_one_number():
    a = mp.LossScaleOptimizer(sgd(), growth_interval=9)
    b = mp.LossScaleOptimizer(sgd(), dynamic_growth_steps=9)
    c = mp.LossScaleOptimizer(sgd(), 2.0**15, 9, growth_interval=9)
    for optimizer in (a, b, c):
        assert optimizer.growth_interval == 9
        assert optimizer.dynamic_growth_steps == 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: mp.wrap("adam"),
        lambda: mp.wrap("sgd", preset="megatron", skip_nonfinite=False),
        lambda: mp.wrap("sgd", preset="fairseq", tolerance=0.5, name="mine"),
        lambda: mp.wrap("sgd", dynamic=False, initial_scale=1024.0),
        lambda: mp.wrap("sgd", jit_compile=False, all_reduce_dtype="float16"),
        lambda: mp.wrap(
            keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(0.1, 100)
            )
        ),
    ],
    ids=["adam", "megatron", "fairseq", "static", "options", "schedule"],
)
def test_config_round_trip(make):
    optimizer = make()
    config = json.loads(json.dumps(optimizer.get_config()))
    before = json.dumps(config)
    revived = mp.LossScaleOptimizer.from_config(config)
    assert json.dumps(config) == before, "from_config ate its argument"
    again = mp.LossScaleOptimizer.from_config(config)
    assert revived.get_config() == again.get_config() == config
    for get in (
        lambda o: keras.optimizers.get(keras.optimizers.serialize(o)),
        lambda o: keras.saving.deserialize_keras_object(
            keras.saving.serialize_keras_object(o)
        ),
    ):
        other = get(optimizer)
        assert isinstance(other, mp.LossScaleOptimizer)
        assert other.get_config() == config


@pytest.mark.parametrize("tf_keras_inner", [False, True])
@pytest.mark.parametrize("dynamic", [True, False])
def test_configs_of_tf_keras_load(dynamic, tf_keras_inner):
    inner = keras.optimizers.serialize(keras.optimizers.SGD(0.5))
    if tf_keras_inner:  # what tf.keras 2.17 writes
        inner = {"class_name": "SGD", "config": dict(inner["config"])}
        inner["config"] |= {"jit_compile": True, "is_legacy_optimizer": False}
    optimizer = mp.LossScaleOptimizer.from_config(
        {
            "inner_optimizer": inner,
            "dynamic": dynamic,
            "initial_scale": 1024.0,
            "dynamic_growth_steps": 500 if dynamic else None,
        }
    )
    assert optimizer.dynamic is dynamic
    assert float(optimizer.loss_scale) == 1024.0
    assert optimizer.dynamic_growth_steps == (500 if dynamic else None)
    assert float(optimizer.learning_rate) == 0.5


def test_a_custom_inner_optimizer_is_revived_by_name():
    class Mine(keras.optimizers.SGD):
        pass

    config = mp.wrap(Mine(0.5)).get_config()
    revived = mp.LossScaleOptimizer.from_config(config, {"Mine": Mine})
    assert type(revived.inner_optimizer) is Mine


def test_numbers_set_live_take_effect_without_retracing():
    variable = keras.Variable(0.0)
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        optimizer.apply([gradient * optimizer.scale_loss(1.0)])
        return optimizer.loss_scale.value

    good, bad = tf.constant(1.0), tf.constant(np.nan)
    assert float(step(good)) == 8.0
    optimizer.growth_interval = 1  # below the steps already counted
    optimizer.growth_factor = 4.0
    assert float(step(good)) == 32.0
    optimizer.backoff_factor = 0.25
    assert float(step(bad)) == 8.0
    optimizer.min_scale = 8.0
    assert float(step(bad)) == 8.0
    optimizer.max_scale = 16.0
    assert float(step(good)) == 16.0
    optimizer.loss_scale = 8.0
    optimizer.hysteresis = 2
    assert float(step(good)) == 16.0  # growth refills the hysteresis
    assert float(step(bad)) == 16.0
    assert float(step(bad)) == 8.0
    assert step.experimental_get_tracing_count() == 1
    config = optimizer.get_config()
    assert config["growth_factor"] == 4.0
    assert config["dynamic_growth_steps"] == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("growth_factor", 1.0, "must be above 1"),
        ("growth_interval", True, "must be a number"),
        ("min_scale", 2.0**25, "must not be above `max_scale`"),
        ("max_scale", 0.5, "must not pass 1 after"),
        ("min_scale", 0.5, "must not pass 1 after"),
        ("max_scale", 2.0**127, r"must not pass 2\*\*126 after"),
        ("jit_compile", True, "must be given to the constructor"),
        ("all_reduce_dtype", "float16", "must be given to the constructor"),
        ("max_scale", np.nan, "must be finite"),
        ("skip_nonfinite", False, "must be given to the constructor"),
        ("initial_scale", 8.0, "must be given to the constructor"),
        ("hysteresis_refill", "backoff", "must be given to the constructor"),
        ("loss_scale", 0.5, "must lie between `min_scale`"),
        ("loss_scale", np.inf, "must be finite"),
        ("loss_scale", None, "must be a number"),
        ("good_steps", "many", "must be a number"),
    ],
)
def test_wrong_numbers_set_live_raise_and_change_nothing(name, value, message):
    optimizer = mp.wrap("sgd")
    config = optimizer.get_config()
    with pytest.raises((AttributeError, TypeError, ValueError), match=message):
        setattr(optimizer, name, value)
    assert optimizer.get_config() == config
    assert float(optimizer.loss_scale) == 2.0**15


def test_a_bound_set_live_moves_the_scale_at_once():
    optimizer = mp.wrap("sgd", initial_scale=2.0**15)
    optimizer.max_scale = 2.0**10
    assert float(optimizer.loss_scale) == 2.0**10
    optimizer.max_scale = 2.0**20
    optimizer.min_scale = 2.0**16
    assert float(optimizer.loss_scale) == 2.0**16
    revived = mp.LossScaleOptimizer.from_config(optimizer.get_config())
    assert revived.rule == optimizer.rule
    assert revived.initial_scale == 2.0**16


def test_the_scale_can_be_set_from_what_it_is():
    optimizer = mp.wrap("sgd", initial_scale=64.0)
    optimizer.loss_scale *= 2
    optimizer.loss_scale = optimizer.loss_scale / 4
    optimizer.loss_scale = tf.constant(16.0) * 2
    assert float(optimizer.loss_scale) == 32.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"growht_interval": 3}, "Did you mean `growth_interval`"),
        ({"preset": "torch"}, "is an argument of `mp.wrap`"),
        ({"learning_rate": 0.1}, "belong to the `inner_optimizer`"),
    ],
    ids=str,
)
def test_unknown_arguments_are_advised(arguments, message):
    with pytest.raises(ValueError, match=message):
        mp.LossScaleOptimizer(sgd(), **arguments)


def test_repr_says_what_it_is_of():
    assert "growth_interval=2000" in repr(mp.wrap("sgd"))
    assert "SGD" in repr(mp.wrap("sgd"))


def test_a_fixed_scale_has_no_numbers_to_set():
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=0.5)
    assert optimizer.growth_factor is None
    with pytest.raises(AttributeError, match="must be given"):
        optimizer.growth_factor = 2.0
    optimizer.loss_scale = 2.0**30
    assert float(optimizer.scale_loss(1.0)) == 2.0**30


def test_a_fixed_scale_stays_and_skips():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0), dynamic=False, initial_scale=1024.0
    )
    for gradient in (256.0, np.inf, np.nan, 256.0):
        optimizer.scale_loss(1.0)
        optimizer.apply([tf.constant(gradient)], [variable])
    assert float(optimizer.loss_scale) == 1024.0
    assert float(variable) == 0.5
    assert int(optimizer.skipped_steps) == 2


def test_a_dropped_factor_is_said():
    inner = keras.optimizers.SGD(0.1, loss_scale_factor=100.0)
    with pytest.warns(mp.LossScaleWarning, match="initial_scale=100.0"):
        mp.LossScaleOptimizer(inner)
    assert inner.loss_scale_factor is None
