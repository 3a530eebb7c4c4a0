"""Scenarios with known numbers from the tests of other frameworks.

The frameworks' own loss-scale rules are in `tests/loss_scale/test_presets.py`.
"""

import itertools

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from reference import ReferenceLossScale

import tf_mixprec as mp


def make(values, learning_rate=1.0, inner=None, **options):
    variable = keras.Variable(np.array(values, "float32"))
    optimizer = mp.wrap(inner or keras.optimizers.SGD(learning_rate), **options)
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    return optimizer, variable


def scaled_step(optimizer, variable, gradient):
    """Applies a gradient of the unscaled loss."""
    gradient = tf.constant(gradient) * optimizer.scale_loss(1.0)
    optimizer.apply([gradient], [variable])


class TestTfKeras:
    def test_dynamic_growth(self):
        optimizer, variable = make(
            5.0, 2.0, initial_scale=2.0, growth_interval=1
        )
        for expected in (3.0, 1.0):
            scaled_step(optimizer, variable, 1.0)
            assert float(variable) == expected
        assert float(optimizer.loss_scale) == 8.0

    def test_clipped_gradients(self):
        optimizer, variable = make(
            3.0,
            inner=keras.optimizers.SGD(2.0, clipvalue=1.0),
            initial_scale=4.0,
            growth_interval=1,
        )
        scaled_step(optimizer, variable, 4.0)  # clipped to 1
        assert float(variable) == 1.0
        assert float(optimizer.loss_scale) == 8.0
        scaled_step(optimizer, variable, np.inf)  # skipped, not clipped
        assert float(variable) == 1.0
        assert float(optimizer.loss_scale) == 4.0

    @pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
    def test_update_and_skip(self, bad):
        optimizer, variable = make(
            [1.0, 2.0], initial_scale=2.0, growth_interval=1
        )
        scaled_step(optimizer, variable, [2.0, 2.0])
        assert variable.numpy().tolist() == [-1.0, 0.0]
        assert float(optimizer.loss_scale) == 4.0
        scaled_step(optimizer, variable, [bad, 2.0])
        assert variable.numpy().tolist() == [-1.0, 0.0]
        assert float(optimizer.loss_scale) == 2.0

    @pytest.mark.parametrize("bad_replica", [0, 1])
    def test_nan_on_one_replica_only(self, bad_replica):
        strategy = strategies.make("mirrored_2")
        with strategy.scope():
            optimizer, variable = make(
                [1.0, 2.0], initial_scale=2.0, growth_interval=1
            )
        gradients = [[1.0, 1.0], [1.0, 1.0]]
        gradients[bad_replica] = [np.nan, 1.0]
        strategy.run(
            lambda gradient: optimizer.apply([gradient], [variable]),
            args=(strategies.per_replica(strategy, gradients),),
        )
        assert strategies.one_value(strategy, variable).tolist() == [1.0, 2.0]
        assert strategies.one_value(strategy, optimizer.loss_scale) == 1.0

    def test_momentum_slots(self):
        optimizer, variable = make(
            [1.0, 2.0],
            inner=keras.optimizers.SGD(1.0, momentum=1.0),
            initial_scale=2.0,
            growth_interval=1,
        )
        for expected, scale in ([0.0, 1.0], 4.0), ([-2.0, -1.0], 8.0):
            scaled_step(optimizer, variable, [1.0, 1.0])
            assert variable.numpy().tolist() == expected
            assert float(optimizer.loss_scale) == scale

    def test_get_unscaled_gradients(self):
        optimizer, _ = make(1.0, initial_scale=2.0)
        gradients = [tf.constant(3.0), None, tf.constant(-4.0)]
        unscaled = optimizer.get_unscaled_gradients(gradients)
        assert float(unscaled[0]) == 1.5
        assert unscaled[1] is None
        assert float(unscaled[2]) == -2.0
        sparse = tf.IndexedSlices(tf.constant([4.0, 8.0]), tf.constant([0, 2]))
        (unscaled,) = optimizer.get_unscaled_gradients([sparse])
        assert unscaled.values.numpy().tolist() == [2.0, 4.0]
        assert unscaled.indices.numpy().tolist() == [0, 2]

    def test_checkpoint_of_a_slot_and_a_counter(self, tmp_path):
        def new():
            return make(
                0.0,
                inner=keras.optimizers.SGD(1.0, momentum=1.0),
                initial_scale=1.0,
                growth_interval=2,
            )

        optimizer, variable = new()
        scaled_step(optimizer, variable, 1.0)
        path = str(tmp_path / "checkpoint")
        saved = tf.train.Checkpoint(optimizer=optimizer).save(path)
        restored, _ = new()
        tf.train.Checkpoint(optimizer=restored).restore(saved)
        assert float(restored.inner_optimizer.momentums[0]) == -1.0
        assert int(restored.good_steps) == 1


class TestTorch:
    def test_update_scale_kernel(self):
        rule = mp.DynamicLossScale(
            initial_scale=4.0, backoff_factor=0.25, growth_interval=2
        )
        state = mp.LossScaleState(loss_scale=4.0)
        for found_inf, scale, good_steps in (
            (False, 4.0, 1),
            (False, 8.0, 0),
            (True, 2.0, 0),
        ):
            state = mp.next_state(state, found_inf, rule)
            assert float(state.loss_scale) == scale
            assert int(state.good_steps) == good_steps

    @pytest.mark.parametrize("clips", [False, True])
    def test_an_overflow_among_four_batches(self, clips):
        """The final scale, and weights equal to those of an unscaled run."""
        gradients = [[1.0, -2.0], [np.inf, 0.0], [0.5, 0.25], [4.0, 3.0]]
        settings = {"clipnorm": 1.0} if clips else {}
        optimizer, variable = make(
            [1.0, 1.0],
            inner=keras.optimizers.SGD(0.1, **settings),
            initial_scale=128.0,
            growth_interval=1,
        )
        bare = keras.optimizers.SGD(0.1, **settings)
        control = keras.Variable([1.0, 1.0])
        for gradient in gradients:
            scaled_step(optimizer, variable, gradient)
            if np.isfinite(gradient).all():
                bare.apply([tf.constant(gradient)], [control])
        assert float(optimizer.loss_scale) == 128.0 * 2.0**3 * 0.5
        np.testing.assert_array_equal(variable.numpy(), control.numpy())

    def test_sparse_unscale(self):
        optimizer, _ = make(1.0, initial_scale=4.0)
        for bad in (None, np.inf, np.nan):
            values = np.array([16.0, 32.0, 64.0], "float32")
            if bad is not None:
                values[1] = bad
            sparse = tf.IndexedSlices(
                tf.constant(values), tf.constant([0, 1, 2])
            )
            (unscaled,), found_inf = optimizer.unscale([sparse])
            assert bool(found_inf) is (bad is not None)
            if bad is None:
                assert unscaled.values.numpy().tolist() == [4.0, 8.0, 16.0]

    def test_growth_stays_finite(self):
        rule = mp.DynamicLossScale(
            initial_scale=1e38,
            growth_factor=16.0,
            growth_interval=1,
            max_scale=3.4e38,
        )
        state = rule.initial_state()
        for _ in range(3):
            state = mp.next_state(state, False, rule)
            assert np.isfinite(float(state.loss_scale))

    def test_two_optimizers_skip_each_on_its_own(self):
        first, a = make(1.0, initial_scale=4.0)
        second, b = make(1.0, initial_scale=4.0)
        scaled_step(first, a, 0.5)
        scaled_step(second, b, np.inf)
        assert (float(a), float(b)) == (0.5, 1.0)
        assert float(first.loss_scale) == 4.0
        assert float(second.loss_scale) == 2.0

    def test_state_that_is_loaded_wins(self):
        saved, _ = make(1.0, initial_scale=3.0, growth_interval=2)
        loaded, _ = make(1.0, initial_scale=6.0, growth_interval=2)
        loaded.good_steps = 1
        loaded.set_weights([v.numpy() for v in saved.variables])
        assert float(loaded.loss_scale) == 3.0
        assert int(loaded.good_steps) == 0


class TestApex:
    def test_each_of_three_losses_has_its_own_scale(self):
        made = [make(1.0) for _ in range(3)]
        for overflows, (optimizer, variable) in enumerate(made):
            for _ in range(overflows):
                scaled_step(optimizer, variable, np.inf)
        scales = [float(optimizer.loss_scale) for optimizer, _ in made]
        assert scales == [2.0**15, 2.0**14, 2.0**13]

    @pytest.mark.parametrize(
        ("initial_scale", "growth_factor", "backoff_factor"),
        list(itertools.product([1.0, 2.0**10, 2.0**16], [2, 4], [0.5, 0.25])),
    )
    @pytest.mark.parametrize("hysteresis", [1, 10, 100])
    def test_hysteresis_fuzz(
        self, initial_scale, growth_factor, backoff_factor, hysteresis
    ):
        rule = mp.DynamicLossScale(
            initial_scale=initial_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=10,
            min_scale=2.0**-126,
            max_scale=2.0**127,
            hysteresis=hysteresis,
            hysteresis_refill="good_step",
        )
        reference, state = ReferenceLossScale(rule), rule.initial_state()
        rng = np.random.default_rng(int(initial_scale))
        # Long runs of either kind, as in a real run.
        kinds = np.repeat(rng.random(10) < 0.5, rng.integers(1, 12, 10))
        for found_inf in kinds:
            state = mp.next_state(state, bool(found_inf), rule)
            assert float(state.loss_scale) == reference.step(bool(found_inf))


class TestDeepSpeed:
    def test_window_of_two(self):
        optimizer, variable = make(
            1.0,
            preset="deepspeed",
            initial_scale=2.0**8,
            growth_interval=2,
        )
        # The scale before step i doubles at each even i, one step later than
        # the second good step.
        seen = []
        for _ in range(10):
            seen.append(float(optimizer.loss_scale))
            scaled_step(optimizer, variable, 0.0)
        expected = 2.0 ** (8 + np.maximum(0, (np.arange(10) - 1) // 2))
        assert seen == expected.tolist()

    def test_all_overflow_stops_at_the_floor(self):
        optimizer, variable = make(
            1.0, preset="deepspeed", hysteresis=1, initial_scale=2.0**4
        )
        scale = 2.0**4
        for bad in [np.inf, -np.inf, *[np.nan] * 6]:
            scaled_step(optimizer, variable, bad)
            scale = max(scale / 2, 1.0)
            assert float(optimizer.loss_scale) == scale

    def test_some_overflow(self):
        optimizer, variable = make(
            1.0,
            preset="deepspeed",
            hysteresis=1,
            initial_scale=2.0**8,
            growth_interval=2,
        )
        for gradient, scale in [
            (np.inf, 2.0**7),
            (np.nan, 2.0**6),
            *[(0.0, 2.0**6)] * 2,
            (0.0, 2.0**7),  # the window and one more
            (np.inf, 2.0**6),
        ]:
            scaled_step(optimizer, variable, gradient)
            assert float(optimizer.loss_scale) == scale

    @pytest.mark.parametrize(
        "scale", [-1, float("inf"), float("nan"), True, [], {}], ids=repr
    )
    def test_what_is_no_scale_is_refused(self, scale):
        with pytest.raises((TypeError, ValueError), match="must"):
            mp.wrap("sgd", dynamic=False, initial_scale=scale)


def test_fairseq_one_step():
    """x=2, weight 3, bias 5, L1 loss with target 12, Adam at 0.1."""
    weight, bias = keras.Variable([[3.0]]), keras.Variable([5.0])
    optimizer = mp.wrap(
        keras.optimizers.Adam(0.1),
        preset="fairseq",
        initial_scale=1.0,
        growth_interval=1,
    )
    with tf.GradientTape() as tape:
        output = tf.matmul(tf.constant([[2.0]]), weight) + bias
        loss = tf.reduce_sum(tf.abs(output - 12.0))
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, [weight, bias])
    np.testing.assert_allclose(
        float(tf.linalg.global_norm(gradients)), 2.2361, atol=1e-4
    )
    optimizer.apply(gradients, [weight, bias])
    np.testing.assert_allclose(weight.numpy(), [[3.1]], atol=1e-4)
    np.testing.assert_allclose(bias.numpy(), [5.1], atol=1e-4)
    assert float(optimizer.loss_scale) == 2.0


@pytest.mark.parametrize("factor", [2.0, 3.0])
@pytest.mark.parametrize("period", [1, 4])
def test_jmp_periods(factor, period):
    rule = mp.DynamicLossScale(
        initial_scale=10.0,
        growth_factor=factor,
        backoff_factor=1 / factor,
        growth_interval=period,
    )
    state = rule.initial_state()
    for i in range(1, period):
        state = mp.next_state(state, False, rule)
        assert (float(state.loss_scale), int(state.good_steps)) == (10.0, i)
    state = mp.next_state(state, False, rule)
    assert (float(state.loss_scale), int(state.good_steps)) == (10 * factor, 0)
    state = rule.initial_state()
    for i in range(1, 6):
        state = mp.next_state(state, True, rule)
        expected = max(1.0, 10.0 / factor**i)
        np.testing.assert_allclose(float(state.loss_scale), expected, rtol=1e-6)


def test_mpx_ceiling_is_the_largest_float16():
    rule = mp.DynamicLossScale(
        initial_scale=2.0**14, growth_interval=1, max_scale=65504.0
    )
    state = rule.initial_state()
    for found_inf, scale in (
        (False, 2.0**15),
        (False, 65504.0),
        (True, 32752.0),
    ):
        state = mp.next_state(state, found_inf, rule)
        assert float(state.loss_scale) == scale


class TestKeras:
    def test_values(self):
        optimizer, variable = make([1.0, 2.0, 3.0, 4.0], 0.5)
        scaled_step(optimizer, variable, [1.0, 6.0, 7.0, 2.0])
        assert variable.numpy().tolist() == [0.5, -1.0, -0.5, 3.0]

    def test_four_infs(self):
        optimizer, variable = make(1.0, initial_scale=400.0)
        for _ in range(4):
            scaled_step(optimizer, variable, np.inf)
        assert float(optimizer.scale_loss(1.0)) == 25.0

    def test_eight_good_steps(self):
        optimizer, variable = make(
            1.0, initial_scale=2.0, dynamic_growth_steps=2
        )
        for _ in range(8):
            scaled_step(optimizer, variable, 1.0)
        assert float(optimizer.scale_loss(1.0)) == 32.0


def test_the_eight_fields_of_a_paddle_scaler_survive():
    rule = mp.DynamicLossScale(
        initial_scale=1024.0,
        growth_factor=4.0,
        backoff_factor=0.25,
        growth_interval=7,
        hysteresis=3,
        hysteresis_refill="backoff",
    )
    optimizer, variable = make(1.0, preset=rule)
    for gradient in (0.0, 0.0, np.inf):
        scaled_step(optimizer, variable, gradient)
    revived = mp.LossScaleOptimizer.from_config(optimizer.get_config())
    revived.build([variable])
    revived.set_weights([v.numpy() for v in optimizer.variables])
    assert revived.rule == rule
    for field in mp.LossScaleState._fields:
        assert (
            getattr(revived, field).numpy() == getattr(optimizer, field).numpy()
        )
    assert int(revived.hysteresis_left) == 2
