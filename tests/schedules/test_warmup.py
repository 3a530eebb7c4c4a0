"""A learning rate that starts small, counting good steps only."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def rates(schedule, steps=12):
    return [float(schedule(step)) for step in range(steps)]


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_it_rises_to_the_rate_and_stays(steps):
    expected = [0.3 * min(1.0, (i + 1) / steps) for i in range(12)]
    np.testing.assert_allclose(
        rates(mp.schedules.Warmup(0.3, steps)), expected, rtol=1e-6
    )


def test_it_leads_to_the_start_of_a_schedule():
    decay = keras.optimizers.schedules.CosineDecay(0.3, 6)
    got = rates(mp.schedules.Warmup(decay, 4))
    expected = [0.3 * (i + 1) / 4 for i in range(4)]
    cosine = 0.15 * (1 + np.cos(np.pi * np.minimum(np.arange(8), 6) / 6))
    np.testing.assert_allclose(got, [*expected, *cosine], atol=1e-7)


def test_steps_beyond_what_float32_counts():
    piecewise = keras.optimizers.schedules.PiecewiseConstantDecay(
        [2**24], [1.0, 0.5]
    )
    schedule = mp.schedules.Warmup(piecewise, 2)
    assert float(schedule(2**24 + 2)) == 1.0
    assert float(schedule(2**24 + 3)) == 0.5


def test_a_skipped_step_does_not_count():
    variable = keras.Variable([0.0])
    optimizer = mp.wrap(
        keras.optimizers.SGD(mp.schedules.Warmup(1.0, 4)),
        dynamic=False,
        initial_scale=1.0,
    )
    optimizer.build([variable])
    step = tf.function(lambda g: optimizer.apply([g], [variable]))
    seen = []
    for gradient in (np.nan, 1.0, np.inf, np.nan, 1.0, 1.0, 1.0, 1.0):
        before = variable.numpy()[0]
        step(tf.constant([gradient]))
        seen.append(float(before - variable.numpy()[0]))
    assert seen == [0.0, 0.25, 0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    "schedule", [0.5, keras.optimizers.schedules.CosineDecay(0.5, 6)]
)
def test_it_is_saved_with_the_optimizer(schedule, tmp_path):
    warmup = mp.schedules.Warmup(schedule, 3, name="start")
    config = json.loads(json.dumps(warmup.get_config()))
    assert mp.schedules.Warmup.from_config(config).get_config() == config
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(mp.wrap(keras.optimizers.Adam(warmup)), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.optimizer.inner_optimizer._learning_rate
    assert rates(again) == rates(warmup)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="schedule='fast'"):
        mp.schedules.Warmup("fast", 3)
    with pytest.raises(TypeError, match="steps=2.5"):
        mp.schedules.Warmup(0.1, 2.5)
    with pytest.raises(ValueError, match="must not be negative"):
        mp.schedules.Warmup(-0.1, 3)
    with pytest.raises(ValueError, match="steps=0"):
        mp.schedules.Warmup(0.1, 0)
