"""Tests for `tf_mixprec.loss_scale.rule`."""

import json

import keras
import numpy as np
import pytest

import tf_mixprec as mp


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"growth_factor": 1.0}, "must be above 1"),
        ({"growth_factor": float("inf")}, "must be finite"),
        ({"growth_factor": True}, "must be a number"),
        ({"backoff_factor": 0.0}, "must lie strictly between 0 and 1"),
        ({"backoff_factor": 1.0}, "must lie strictly between 0 and 1"),
        ({"backoff_factor": float("nan")}, "must be finite"),
        ({"growth_interval": 0}, "must be an int of at least 1"),
        ({"growth_interval": -5}, "must be an int of at least 1"),
        ({"growth_interval": 2.5}, "must be an int of at least 1"),
        ({"growth_interval": None}, "must be a number"),
        ({"growth_delay": -1}, "must be an int of at least 0"),
        ({"min_scale": 4.0, "max_scale": 2.0}, "not be above `max_scale`"),
        ({"min_scale": 0.0}, r"must lie between 2\*\*-126 and 2\*\*128"),
        ({"min_scale": 1e-45}, r"must lie between 2\*\*-126 and 2\*\*128"),
        ({"min_scale": 2.0**16}, "must lie between `min_scale`"),
        ({"initial_scale": 0.0}, r"must lie between 2\*\*-126"),
        ({"initial_scale": -8.0}, r"must lie between 2\*\*-126"),
        ({"initial_scale": float("inf")}, "must be finite"),
        ({"initial_scale": float("nan")}, "must be finite"),
        ({"initial_scale": "1024"}, "must be a number"),
        ({"initial_scale": 2.0**25}, "must lie between `min_scale`"),
        ({"max_scale": 2.0**128}, r"must lie between 2\*\*-126"),
        # Rounds to inf in float32, although it is below 2**128.
        ({"max_scale": 2.0**128 * (1 - 2**-26)}, r"must lie between 2\*\*-126"),
        ({"hysteresis": 0}, "must be an int of at least 1"),
        ({"hysteresis": True}, "must be a number"),
        ({"hysteresis_refill": "never"}, "must be one of 'growth'"),
        ({"tolerance": -0.1}, "must lie between 0 and 1"),
        ({"tolerance": 1.1}, "must lie between 0 and 1"),
    ],
    ids=str,
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        mp.DynamicLossScale(**arguments)
    assert "Received: " in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan, True, "8"])
def test_a_static_scale_must_be_a_scale(value):
    with pytest.raises((TypeError, ValueError), match="must"):
        mp.StaticLossScale(initial_scale=value)


@pytest.mark.parametrize(
    "rule",
    [
        mp.StaticLossScale(initial_scale=8.0),
        *(getattr(mp.presets, name) for name in mp.presets.__all__),
    ],
    ids=str,
)
def test_config_round_trip(rule):
    config = json.loads(json.dumps(rule.get_config()))
    assert type(rule).from_config(config) == rule
    assert type(rule).from_config(config).get_config() == rule.get_config()
    serialized = json.loads(
        json.dumps(keras.saving.serialize_keras_object(rule))
    )
    assert keras.saving.deserialize_keras_object(serialized) == rule


def test_numpy_numbers_are_numbers():
    rule = mp.DynamicLossScale(
        initial_scale=np.float32(8), growth_interval=np.int64(5)
    )
    config = json.loads(json.dumps(rule.get_config()))
    assert (config["initial_scale"], config["growth_interval"]) == (8.0, 5)
