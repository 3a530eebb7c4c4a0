"""The search for loss scales that work, on made-up models."""

import pytest

from tf_mixprec.diagnostics.gradient_step import GradientMatch
from tf_mixprec.diagnostics.loss_scale_window import HIGHEST_EXPONENT
from tf_mixprec.diagnostics.loss_scale_window import LossScaleWindow
from tf_mixprec.diagnostics.loss_scale_window import loss_scale_window

VALUES = 100_000


def window(overflows_at=20, lost=lambda exponent: 0):
    """Returns the window of a model that loses so many values at a scale."""
    tried = []

    def matches_at(scale):
        exponent = scale.as_integer_ratio()[0].bit_length() - 1
        exponent -= scale.as_integer_ratio()[1].bit_length() - 1
        tried.append(exponent)
        return [
            GradientMatch(
                variable="a",
                nonzero=VALUES,
                lost=lost(exponent),
                nonfinite=int(exponent >= overflows_at),
                cosine=1.0,
                norm_ratio=1.0,
            )
        ]

    found = loss_scale_window(matches_at, lambda scale: f"layer at {scale:g}")
    assert len(tried) == len(set(tried)) <= 16
    return found


@pytest.mark.parametrize("overflows_at", range(-23, HIGHEST_EXPONENT + 1, 7))
def test_the_highest_is_the_last_that_does_not_overflow(overflows_at):
    found = window(overflows_at)
    assert found.highest == 2.0 ** (overflows_at - 1)
    assert found.highest_limit == f"layer at {2.0**overflows_at:g}"
    assert found.lowest == min(1.0, found.highest)
    assert not found.is_empty


@pytest.mark.parametrize("saved_at", range(1, 20, 3))
def test_the_lowest_is_the_first_that_loses_little(saved_at):
    found = window(lost=lambda e: 101 if e < saved_at else 100)
    assert found.lowest == 2.0**saved_at
    assert found.lowest_limit == "a"
    assert found.holds(2.0**saved_at)
    assert not found.holds(2.0 ** (saved_at - 1))


def test_nothing_limits_it():
    found = window(overflows_at=100)
    assert found == LossScaleWindow(
        lowest=1.0,
        highest=2.0**HIGHEST_EXPONENT,
        lowest_limit="",
        highest_limit="",
        lost={1.0: 0.0, 2.0**HIGHEST_EXPONENT: 0.0},
    )


def test_what_is_lost_at_any_scale_does_not_count():
    found = window(lost=lambda e: 800 if e < 5 else 500)
    assert (found.lowest, found.is_empty) == (2.0**5, False)


def test_too_much_is_lost_at_any_scale():
    found = window(lost=lambda e: 2000)
    assert found.is_empty
    assert (found.lowest, found.lowest_limit) == (None, "a")


def test_no_scale_is_finite():
    found = window(overflows_at=-1000)
    assert found.is_empty
    assert found.highest is None
    assert not found.holds(1.0)
