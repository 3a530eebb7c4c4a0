"""Tests for `tf_mixprec.optimizers.wrap`."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def test_wraps_an_instance_a_name_and_a_config():
    inner = keras.optimizers.Adam(0.5)
    assert mp.wrap(inner).inner_optimizer is inner
    assert isinstance(
        mp.wrap("rmsprop").inner_optimizer, keras.optimizers.RMSprop
    )
    config = json.loads(json.dumps(keras.optimizers.serialize(inner)))
    before = json.dumps(config)
    wrapped = mp.wrap(config)
    assert wrapped.inner_optimizer.get_config() == inner.get_config()
    assert json.dumps(config) == before


def test_wrapping_twice_is_once():
    optimizer = mp.wrap("sgd")
    assert mp.wrap(optimizer) is optimizer
    with pytest.raises(ValueError, match="must not be wrapped already"):
        mp.wrap(optimizer, growth_interval=10)
    with pytest.raises(ValueError, match="must not be wrapped already"):
        mp.wrap(optimizer, preset="torch")


def test_options_win_over_the_preset():
    optimizer = mp.wrap("sgd", preset="megatron", initial_scale=2.0**10)
    assert optimizer.rule == mp.DynamicLossScale(
        **{**mp.presets.megatron.get_config(), "initial_scale": 2.0**10}
    )
    assert float(optimizer.loss_scale) == 2.0**10
    assert int(optimizer.hysteresis_left) == 2
    renamed = mp.wrap("sgd", preset="torch", dynamic_growth_steps=7)
    assert renamed.growth_interval == 7


@pytest.mark.parametrize("name", mp.presets.__all__)
def test_a_preset_is_its_rule(name):
    optimizer = mp.wrap("sgd", preset=name)
    assert optimizer.rule == getattr(mp.presets, name)
    assert mp.wrap("sgd", preset=optimizer.rule).rule == optimizer.rule


def test_a_static_rule_is_a_preset_too():
    optimizer = mp.wrap("sgd", mp.StaticLossScale(initial_scale=64.0))
    assert not optimizer.dynamic
    assert float(optimizer.loss_scale) == 64.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((keras.optimizers.Adam,), "must be a Keras optimizer instance"),
        ((None,), "must be a Keras optimizer instance"),
        (("sgd", "nccl"), "must be one of apex"),
        (("sgd", 3), "must be a name in `mp.presets`"),
        (({},), "must have a 'class_name'"),
        (
            ({"class_name": "LossScaleOptimizer", "config": {}},),
            "must have an 'inner_optimizer'",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mp.wrap(*arguments)


def test_a_preset_is_not_a_fixed_scale():
    with pytest.raises(ValueError, match="must not be given together"):
        mp.wrap("sgd", preset="torch", dynamic=False)


def test_a_fixed_factor_is_kept_as_a_fixed_scale():
    inner = keras.optimizers.SGD(1.0, loss_scale_factor=1024.0)
    optimizer = mp.wrap(inner)
    assert not optimizer.dynamic
    assert float(optimizer.scale_loss(1.0)) == 1024.0
    variable = keras.Variable(1.0)
    optimizer.apply([tf.constant(512.0)], [variable])
    assert float(variable) == 0.5


@pytest.mark.parametrize(
    "options",
    [{"dynamic": True}, {"initial_scale": 8.0}, {"preset": "torch"}],
    ids=str,
)
def test_a_fixed_factor_is_not_replaced_in_silence(options):
    inner = keras.optimizers.SGD(1.0, loss_scale_factor=1024.0)
    with pytest.raises(ValueError, match="`loss_scale_factor` must not be set"):
        mp.wrap(inner, **options)
    assert inner.loss_scale_factor == 1024.0


def keras_wrapper(steps, **options):
    variable = keras.Variable(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.1), **options
    )
    optimizer.build([variable])
    for gradient in steps:
        optimizer.apply([tf.constant(gradient)], [variable])
    return optimizer, variable


def test_keras_own_wrapper_is_converted_with_its_state():
    theirs, variable = keras_wrapper(
        [1.0, np.nan, 1.0, 1.0], initial_scale=512.0, dynamic_growth_steps=50
    )
    ours = mp.wrap(theirs)
    assert ours.inner_optimizer is theirs.inner_optimizer
    assert ours.built
    assert float(ours.loss_scale) == 256.0
    assert int(ours.good_steps) == 2
    assert ours.growth_interval == 50
    assert int(ours.iterations) == 3
    before = float(variable)
    ours.scale_loss(1.0)
    ours.apply([tf.constant(256.0)], [variable])
    assert float(variable) < before


def test_an_unbuilt_wrapper_of_keras_is_converted():
    theirs = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(), initial_scale=2.0**30
    )
    ours = mp.wrap(theirs)
    assert not ours.built
    assert float(ours.loss_scale) == ours.max_scale == 2.0**30


def test_a_preset_changes_the_rule_and_keeps_the_scale_reached():
    theirs, _ = keras_wrapper([np.nan] * 3)
    ours = mp.wrap(theirs, preset="torch")
    assert float(ours.loss_scale) == 2.0**12
    assert ours.rule == mp.presets.torch
    assert float(mp.wrap(theirs, initial_scale=8.0).loss_scale) == 8.0


@pytest.mark.parametrize(
    ("reached", "scale"), [(0.0, 1.0), (np.inf, 2.0**24)], ids=str
)
def test_a_scale_that_keras_ruined_is_moved_into_the_bounds(reached, scale):
    theirs, _ = keras_wrapper([])
    theirs.dynamic_scale.assign(reached)
    assert float(mp.wrap(theirs).loss_scale) == scale


def test_a_serialized_wrapper_is_revived_whole():
    ours = mp.wrap("adam", preset="deepspeed")
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    for optimizer in (ours, theirs):
        revived = mp.wrap(keras.optimizers.serialize(optimizer))
        assert isinstance(revived, mp.LossScaleOptimizer)
        assert revived.initial_scale == optimizer.initial_scale
        assert (
            revived.inner_optimizer.get_config()
            == optimizer.inner_optimizer.get_config()
        )
