"""What hand-written loops call: scale, unscale, change, apply."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def make(scale=8.0, **options):
    variable = keras.Variable([1.0, 1.0])
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0), initial_scale=scale, **options
    )
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    return optimizer, variable


IN_ALL_MODES = pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f: f, id="eager"),
        pytest.param(tf.function, id="graph"),
        pytest.param(lambda f: tf.function(f, jit_compile=True), id="xla"),
    ],
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_scale_loss_multiplies_in_float32(dtype):
    optimizer = mp.wrap("sgd")
    wide = "float64" if dtype == "float64" else "float32"
    for _ in ("before build", "after build"):
        scaled = optimizer.scale_loss(tf.constant(3.0, dtype))
        assert scaled.dtype == wide
        assert float(scaled) == 98304.0
        optimizer.build([keras.Variable(1.0)])
    assert float(optimizer.scale_loss(1)) == 2.0**15


@IN_ALL_MODES
def test_unscale_clip_and_apply(call):
    optimizer, variable = make()

    @call
    def step(gradient):
        gradients, found_inf = optimizer.unscale([gradient])
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_unscaled(gradients, [variable], found_inf)
        return norm

    norm = step(tf.constant([24.0, 32.0]))  # unscaled: 3 and 4
    assert float(norm) == 5.0
    np.testing.assert_allclose(variable.numpy(), [0.4, 0.2], rtol=1e-6)
    step(tf.constant([np.inf, 0.0]))
    np.testing.assert_allclose(variable.numpy(), [0.4, 0.2], rtol=1e-6)
    assert float(optimizer.loss_scale) == 4.0


@IN_ALL_MODES
def test_an_inf_that_the_loop_clips_away_is_not_forgotten(call):
    optimizer, variable = make()

    @call
    def step(gradient):
        gradients, found_inf = optimizer.unscale([gradient])
        clipped = [tf.clip_by_value(g, -1.0, 1.0) for g in gradients]
        optimizer.apply_unscaled(clipped, [variable], found_inf)

    step(tf.constant([np.inf, 0.0]))
    assert variable.numpy().tolist() == [1.0, 1.0]
    assert int(optimizer.skipped_steps) == 1


@IN_ALL_MODES
def test_a_nan_that_the_loop_makes_is_found(call):
    optimizer, variable = make()

    @call
    def step(gradient):
        gradients, found_inf = optimizer.unscale([gradient])
        divided = [g / tf.norm(g) for g in gradients]  # 0 / 0
        optimizer.apply_unscaled(divided, [variable], found_inf)

    step(tf.constant([0.0, 0.0]))
    assert variable.numpy().tolist() == [1.0, 1.0]
    assert int(optimizer.skipped_steps) == 1


def test_apply_unscaled_takes_gradients_that_were_never_scaled():
    variable = keras.Variable([1.0, 1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_unscaled([tf.constant([0.5, 0.25])], [variable])
    assert variable.numpy().tolist() == [0.5, 0.75]


@IN_ALL_MODES
def test_the_loop_of_the_tensorflow_guide(call):
    optimizer, variable = make()

    @call
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
            scaled_loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled_loss, [variable])
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))

    step(tf.constant([0.5, 0.25]))
    assert variable.numpy().tolist() == [0.5, 0.75]
    step(tf.constant([np.nan, 0.25]))
    assert variable.numpy().tolist() == [0.5, 0.75]
    assert float(optimizer.loss_scale) == 4.0
    step(tf.constant([0.5, 0.25]))
    assert variable.numpy().tolist() == [0.0, 0.5]


@IN_ALL_MODES
def test_the_loop_of_the_guide_with_clipping_in_between(call):
    optimizer, variable = make()

    @call
    def step(gradient):
        gradients = optimizer.get_unscaled_gradients([gradient])
        gradients = [tf.clip_by_value(g, -1.0, 1.0) for g in gradients]
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))

    step(tf.constant([4.0, 800.0]))
    assert variable.numpy().tolist() == [0.5, 0.0]
    step(tf.constant([np.inf, 0.0]))
    assert variable.numpy().tolist() == [0.5, 0.0]
    assert int(optimizer.skipped_steps) == 1


def test_unscaled_gradients_only_looked_at_are_not_applied_instead():
    optimizer, variable = make()
    scaled = [tf.constant([4.0, 2.0])]
    optimizer.get_unscaled_gradients(scaled)
    optimizer.apply(scaled, [variable])
    assert variable.numpy().tolist() == [0.5, 0.75]


def test_the_very_gradients_of_unscale_are_not_unscaled_again():
    optimizer, variable = make()
    gradients, _ = optimizer.unscale([tf.constant([4.0, 2.0])])
    optimizer.apply(gradients, [variable])
    assert variable.numpy().tolist() == [0.5, 0.75]
    # Looking at unscaled gradients does not change what apply takes.
    scaled = [tf.constant([4.0, 2.0])]
    optimizer.unscale(scaled)
    optimizer.apply(scaled, [variable])
    assert variable.numpy().tolist() == [0.0, 0.5]


def test_gradients_made_from_those_of_unscale_are_not_unscaled_again():
    optimizer, variable = make()
    gradients, _ = optimizer.unscale([tf.constant([4.0, 2.0])])
    with pytest.raises(RuntimeError, match="must be applied with"):
        optimizer.apply([2 * gradients[0]], [variable])
    assert variable.numpy().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("look", ["unscale", "get_unscaled_gradients"])
def test_a_look_at_gradients_is_forgotten_when_the_next_loss_is_scaled(look):
    optimizer, variable = make()

    def gradient():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(0.5 * variable))
        return tape.gradient(loss, [variable])

    getattr(optimizer, look)(gradient())
    optimizer.apply(gradient(), [variable])
    assert variable.numpy().tolist() == [0.5, 0.5]
    getattr(optimizer, look)(gradient())

    @tf.function
    def step():
        optimizer.apply_gradients([(gradient()[0], variable)])

    step()
    assert variable.numpy().tolist() == [0.0, 0.0]


def test_unscaling_in_another_function_raises():
    optimizer, variable = make()

    @tf.function
    def unscale(gradient):
        return optimizer.get_unscaled_gradients([gradient])

    gradients = unscale(tf.constant([4.0, 2.0]))
    with pytest.raises(RuntimeError, match="must be called in the same"):
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))
    assert variable.numpy().tolist() == [1.0, 1.0]


def test_keras_2_names():
    optimizer = mp.wrap("sgd")
    optimizer.build([keras.Variable(1.0)])
    assert float(optimizer.get_scaled_loss(2.0)) == 65536.0
    assert float(optimizer.get_scaled_loss(lambda: 2.0)()) == 65536.0
    unscaled = optimizer.get_unscaled_gradients([32768.0])
    assert [float(g) for g in unscaled] == [1.0]


def test_applying_gradients_of_a_loss_that_was_not_scaled_warns_once():
    variable = keras.Variable([1.0, 1.0])
    optimizer = mp.wrap("sgd")
    with pytest.warns(mp.LossScaleWarning, match="passed through") as w:
        optimizer.apply([tf.constant([1.0, 1.0])], [variable])
    assert w[0].filename == __file__
    optimizer.apply([tf.constant([1.0, 1.0])], [variable])  # says it once
    gradient = tf.constant([1.0, 1.0])
    for call in (
        lambda o: o.apply_gradients([(gradient, variable)]),
        lambda o: o.unscale([gradient]),
        lambda o: o.get_unscaled_gradients([gradient]),
    ):
        with pytest.warns(mp.LossScaleWarning, match="passed through") as w:
            call(mp.wrap("sgd"))
        assert w[0].filename == __file__


def test_a_loss_scale_that_stays_1_needs_no_scaled_loss():
    variable = keras.Variable([1.0, 1.0])
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply([tf.constant([1.0, 1.0])], [variable])
    with pytest.warns(mp.LossScaleWarning, match="passed through"):
        mp.wrap("sgd", dynamic=False, initial_scale=2.0).apply(
            [tf.constant([1.0, 1.0])], [variable]
        )


def test_check_finite():
    optimizer = mp.wrap("sgd")
    assert optimizer.check_finite([tf.constant([1.0]), None])
    assert not optimizer.check_finite([tf.constant([1.0, np.nan])])


def test_unscale_leaves_what_is_overwritten_by_its_gradient():
    kernel, amax = keras.Variable([1.0]), keras.Variable([1.0])
    amax.overwrite_with_gradient = True
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer.build([kernel, amax])
    optimizer.scale_loss(1.0)
    gradients = [tf.constant([4.0]), tf.constant([3.0])]
    for unscaled, _ in (
        optimizer.unscale(gradients),
        optimizer.unscale(gradients[::-1], [amax, kernel]),
    ):
        assert sorted(float(g[0]) for g in unscaled) == [0.5, 3.0]
    optimizer.scale_loss(1.0)
    optimizer.apply(gradients)
    assert (float(kernel[0]), float(amax[0])) == (0.5, 3.0)
    with pytest.raises(ValueError, match="`variables` must be given"):
        optimizer.unscale(gradients[:1])
    optimizer.apply([tf.constant([4.0]), tf.constant([np.nan])])
    assert (float(kernel[0]), float(amax[0])) == (0.5, 3.0)
