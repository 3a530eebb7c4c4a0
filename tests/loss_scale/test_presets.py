"""Every preset follows the framework that it is named after, step for step.

The rows are the frameworks' own loss scales on one pattern of overflows, each
started at 16 with a growth interval of 3: torch 2.13, Megatron-LM d98e8a64,
DeepSpeed edaa7221, fairseq 3d262bb2, jmp 9c1cdbb and flax 18f8f311 were run;
apex cb65b8ed, PaddlePaddle 3.3.1, MindSpore 2.10.0, Keras 3.15.1 and tf-keras
dd0a7237 were re-derived from their source.
"""

import dataclasses

import pytest

import tf_mixprec as mp

PATTERN = "FFFIFIIFFFFIIIIIIIFF"  # F: finite, I: inf or nan

HALVES = "16 16 32 16 16 8 4 4 4 8 8 4 2 1 .5 .25 .125 .0625 .0625 .0625"
FLOOR_1 = "16 16 32 16 16 8 4 4 4 8 8 4 2 1 1 1 1 1 1 1"
FLOOR_4 = "16 16 32 16 16 8 4 4 4 8 8 4 4 4 4 4 4 4 4 4"
DELAYED = "16 16 16 8 8 4 2 2 2 2 4 2 1 1 1 1 1 1 1 1"
EVERY_SECOND = "16 16 32 32 32 32 16 16 16 32 32 32 16 16 8 8 4 4 4 4"

ROWS = [
    ("torch", {}, HALVES),
    ("megatron", {"hysteresis": 1}, FLOOR_1),
    (
        "megatron",
        {},
        "16 16 32 32 32 16 8 8 8 16 16 16 8 4 2 1 1 1 1 1",
    ),
    # DeepSpeed raises at the floor; the rows go on with the floor held.
    ("deepspeed", {"hysteresis": 1}, DELAYED),
    (
        "deepspeed",
        {},
        "16 16 16 16 16 8 4 4 4 4 8 8 4 2 1 1 1 1 1 1",
    ),
    (
        "deepspeed_consecutive",
        {},
        "16 16 16 16 16 16 8 8 8 8 16 16 8 4 2 1 1 1 1 1",
    ),
    ("fairseq", {"min_scale": 2.0**-13}, HALVES),
    ("fairseq", {"tolerance": 0.5}, HALVES),
    # `min_loss_scale=1` aborts on the way from 2 to 1; the floor held is 2.
    (
        "fairseq",
        {"min_scale": 2.0},
        "16 16 32 16 16 8 4 4 4 8 8 4 2 2 2 2 2 2 2 2",
    ),
    ("fairseq", {"min_scale": 4.0}, FLOOR_4),
    ("jmp", {}, FLOOR_1),
    # The preset's interval is flax's 2000 plus 1; so here 3 plus 1.
    (
        "flax",
        {"growth_interval": 4},
        "16 16 16 8 8 4 2 2 2 2 4 2 1 .5 .25 .125 .0625 .03125 .03125 .03125",
    ),
    ("apex", {}, HALVES),
    ("apex", {"min_scale": 4.0, "max_scale": 32.0}, FLOOR_4),
    ("apex", {"min_scale": 1.0}, FLOOR_1),
    (
        "apex",
        {"hysteresis": 2, "hysteresis_refill": "good_step"},
        "16 16 32 32 32 32 16 16 16 32 32 32 16 8 4 2 1 .5 .5 .5",
    ),
    ("paddle", {}, HALVES),
    ("paddle", {"hysteresis": 2}, EVERY_SECOND),
    ("paddle", {"hysteresis": 2, "min_scale": 1.0}, EVERY_SECOND),
    ("keras", {}, HALVES),
    ("keras", {"min_scale": 1.0}, FLOOR_1),  # MindSpore's host-side manager
    ("tf_keras", {}, FLOOR_1),
]


def trace(rule, pattern):
    state = rule.initial_state()
    scales = []
    for step in pattern:
        state = mp.next_state(state, step == "I", rule)
        scales.append(float(state.loss_scale))
    return scales


@pytest.mark.parametrize(
    ("name", "changes", "row"),
    [pytest.param(*row, id=f"{row[0]}_{i}") for i, row in enumerate(ROWS)],
)
def test_row(name, changes, row):
    changes = {"initial_scale": 16.0, "growth_interval": 3, **changes}
    rule = dataclasses.replace(getattr(mp.presets, name), **changes)
    assert trace(rule, PATTERN) == [float(x) for x in row.split()]


@pytest.mark.parametrize(
    ("tolerance", "pattern", "scales"),
    [
        pytest.param(
            0.0,
            "FFFIFFFIFFFI",
            [16, 16, 16, 8, 8, 8, 8, 4, 4, 4, 4, 2],
            id="none_backs_off_at_each",
        ),
        pytest.param(
            0.3, "FFFIFFFIFFFI", [16] * 12, id="isolated_ones_are_tolerated"
        ),
        pytest.param(
            0.5, "FFIIFF", [16, 16, 16, 8, 8, 8], id="half_of_the_steps_is_not"
        ),
    ],
)
def test_fairseq_tolerance(tolerance, pattern, scales):
    rule = dataclasses.replace(
        mp.presets.fairseq,
        initial_scale=16.0,
        growth_interval=1000,
        tolerance=tolerance,
    )
    assert trace(rule, pattern) == scales


@pytest.mark.parametrize(
    ("name", "initial_scale", "growth_interval", "hysteresis"),
    [
        ("apex", 2.0**16, 2000, 1),
        ("deepspeed", 2.0**16, 1000, 2),
        ("deepspeed_consecutive", 2.0**16, 1000, 2),
        ("fairseq", 2.0**7, 2**14, 1),
        ("flax", 2.0**16, 2001, 1),
        ("jmp", 2.0**15, 2000, 1),
        ("keras", 2.0**15, 2000, 1),
        ("megatron", 2.0**32, 1000, 2),
        ("paddle", 2.0**16, 2000, 1),
        ("tf_keras", 2.0**15, 2000, 1),
        ("torch", 2.0**16, 2000, 1),
    ],
)
def test_defaults(name, initial_scale, growth_interval, hysteresis):
    rule = getattr(mp.presets, name)
    assert rule.initial_scale == initial_scale
    assert rule.growth_interval == growth_interval
    assert rule.hysteresis == hysteresis
    assert (rule.growth_factor, rule.backoff_factor) == (2.0, 0.5)


def test_there_is_a_default_for_every_preset():
    tested = {
        mark.args[1][i][0]
        for mark in test_defaults.pytestmark
        for i in range(len(mark.args[1]))
    }
    assert tested == set(mp.presets.__all__)
