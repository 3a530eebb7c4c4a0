"""Tests for `tf_mixprec.loss_scale.update`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from reference import ReferenceLossScale

import tf_mixprec as mp

RULE = mp.DynamicLossScale(
    initial_scale=4.0, growth_interval=3, min_scale=1.0, max_scale=16.0
)


@pytest.mark.parametrize(
    ("scale", "good_steps", "found_inf", "expected"),
    [
        pytest.param(4.0, 0, False, (4.0, 1), id="counts_a_finite_step"),
        pytest.param(4.0, 2, False, (8.0, 0), id="grows_at_the_interval"),
        pytest.param(4.0, 7, False, (8.0, 0), id="grows_after_the_interval"),
        pytest.param(4.0, 2, True, (2.0, 0), id="backs_off_and_does_not_grow"),
        pytest.param(1.0, 0, True, (1.0, 0), id="holds_at_min_scale"),
        pytest.param(16.0, 2, False, (16.0, 0), id="holds_at_max_scale"),
        pytest.param(64.0, 0, False, (16.0, 1), id="comes_back_from_above"),
        pytest.param(0.25, 0, False, (1.0, 1), id="comes_back_from_below"),
        pytest.param(np.inf, 0, False, (16.0, 1), id="comes_back_from_inf"),
        pytest.param(0.0, 0, False, (1.0, 1), id="comes_back_from_zero"),
    ],
)
def test_next_state(scale, good_steps, found_inf, expected):
    state = mp.LossScaleState(scale, good_steps)
    new = mp.next_state(state, found_inf, RULE)
    assert (float(new.loss_scale), int(new.good_steps)) == expected


def test_counters():
    state = RULE.initial_state()
    seen = []
    for found_inf in (True, True, False, True):
        state = mp.next_state(state, found_inf, RULE)
        seen.append(
            (
                int(state.skipped_steps),
                int(state.consecutive_skipped_steps),
                bool(state.found_inf),
            )
        )
    assert seen == [(1, 1, True), (2, 2, True), (2, 0, False), (3, 1, True)]


def test_a_growth_that_is_not_finite_is_refused():
    rule = mp.DynamicLossScale(
        initial_scale=1e38,
        growth_factor=16.0,
        growth_interval=1,
        max_scale=3.4e38,
    )
    state = mp.next_state(rule.initial_state(), False, rule)
    assert float(state.loss_scale) == np.float32(1e38)
    assert int(state.good_steps) == 0


def test_a_static_scale_only_counts():
    rule = mp.StaticLossScale(initial_scale=1024.0)
    state = rule.initial_state()
    for found_inf in (False, True, True):
        state = mp.next_state(state, found_inf, rule)
    assert float(state.loss_scale) == 1024.0
    assert int(state.skipped_steps) == 2
    assert int(state.consecutive_skipped_steps) == 2


def test_dtypes_are_kept():
    state = mp.LossScaleState(
        *(
            tf.constant(value, dtype)
            for value, dtype in zip(
                RULE.initial_state(),
                ["float32", *["int64"] * 4, "bool", *["int64"] * 2],
                strict=True,
            )
        )
    )
    for found_inf in (True, False, False, False):
        new = mp.next_state(state, tf.constant(found_inf), RULE)
        assert [t.dtype for t in new] == [t.dtype for t in state]
        state = new


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_graph_and_xla_agree_with_eager(jit_compile):
    rule = mp.presets.deepspeed
    traced = tf.function(
        lambda state, found_inf: mp.next_state(state, found_inf, rule),
        jit_compile=jit_compile,
    )
    eager = compiled = mp.LossScaleState(
        *(keras.ops.convert_to_tensor(x) for x in rule.initial_state())
    )
    for found_inf in (False, True, True, False, True, True, True):
        found_inf = tf.constant(found_inf)
        eager = mp.next_state(eager, found_inf, rule)
        compiled = traced(compiled, found_inf)
        assert [x.numpy() for x in eager] == [x.numpy() for x in compiled]


RULES = st.builds(
    lambda exponents, **numbers: mp.DynamicLossScale(
        min_scale=2.0 ** min(exponents),
        initial_scale=2.0 ** sorted(exponents)[1],
        max_scale=2.0 ** max(exponents),
        **numbers,
    ),
    exponents=st.tuples(*[st.integers(-126, 127)] * 3),
    growth_factor=st.sampled_from([1.5, 2.0, 4.0, 1e30]),
    backoff_factor=st.sampled_from([0.5, 0.25, 0.8]),
    growth_interval=st.integers(1, 6),
    growth_delay=st.integers(0, 2),
    hysteresis=st.integers(1, 4),
    hysteresis_refill=st.sampled_from(["growth", "good_step", "backoff"]),
    tolerance=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rule=RULES, history=st.lists(st.booleans(), max_size=24))
def test_follows_the_reference_and_stays_in_bounds(rule, history):
    reference = ReferenceLossScale(rule)
    state = rule.initial_state()
    for found_inf in history:
        state = mp.next_state(state, found_inf, rule)
        scale = float(state.loss_scale)
        assert scale == float(reference.step(found_inf))
        assert rule.min_scale <= scale <= rule.max_scale
        assert int(state.consecutive_skipped_steps) == reference.bad_run()
        assert bool(state.found_inf) == found_inf
    assert int(state.skipped_steps) == sum(history)
