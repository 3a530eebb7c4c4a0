"""A step is the inner optimizer's own, or none at all."""

import bare_optimizers
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

GOOD, BAD = False, True


def steps(optimizer, variables, kinds, scale=1.0, call=lambda f: f):
    """Takes good steps, and bad ones with a NaN in one of the variables."""

    @call
    def step(*gradients):
        optimizer.apply(gradients, variables)

    good = 0
    for i, kind in enumerate(kinds):
        gradients = bare_optimizers.make_gradients(good)
        gradients = [tf.constant(g * np.float32(scale)) for g in gradients]
        if kind is BAD:
            gradients[i % 3] *= [np.nan, np.inf, -np.inf][i % 3]
        else:
            good += 1
        step(*gradients)


@bare_optimizers.ALL
def test_steps_equal_the_bare_optimizers_bit_for_bit(name, setting):
    bare = bare_optimizers.make(name, setting)
    expected = bare_optimizers.make_variables()
    steps(bare, expected, [GOOD] * 5)

    # Skipped steps in between leave no trace: weights, slots, iterations,
    # moving averages and accumulators are those of a run without them.
    optimizer = mp.wrap(
        bare_optimizers.make(name, setting), initial_scale=2**15
    )
    variables = bare_optimizers.make_variables()
    scale = optimizer.scale_loss(1.0)
    optimizer.min_scale = 2.0**15  # the gradients below stay scaled by it
    kinds = [GOOD, BAD, GOOD, GOOD, BAD, BAD, GOOD, GOOD]
    steps(optimizer, variables, kinds, scale)

    got = bare_optimizers.snapshot(optimizer.inner_optimizer, variables)
    want = bare_optimizers.snapshot(bare, expected)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(optimizer.skipped_steps) == 3
    assert int(optimizer.iterations) == int(bare.iterations)


@pytest.mark.parametrize(
    "jit_compile",
    [
        pytest.param(False, id="graph"),
        pytest.param(True, id="xla", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("setting", list(bare_optimizers.SETTINGS))
def test_graph_and_xla_agree_with_eager(setting, jit_compile):
    def run(call):
        optimizer = mp.wrap(
            bare_optimizers.make("Adam", setting), growth_interval=2
        )
        variables = bare_optimizers.make_variables()
        optimizer.build(variables)
        kinds = [GOOD, BAD, GOOD, GOOD, BAD]
        steps(optimizer, variables, kinds, optimizer.scale_loss(1.0), call)
        return bare_optimizers.snapshot(optimizer, variables)

    eager = run(lambda f: f)
    traced = run(lambda f: tf.function(f, jit_compile=jit_compile))
    for a, b in zip(eager, traced, strict=True):
        # XLA fuses multiply and add; one rounding in each of five steps.
        rtol = 1e-6 if jit_compile else 0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", bare_optimizers.CLASSES)
def test_every_optimizer_works_in_a_graph(name):
    def run(optimizer, variables, scale):
        optimizer.build(variables)
        steps(optimizer, variables, [GOOD] * 3, scale, tf.function)
        return variables

    bare = bare_optimizers.make(name, "plain")
    expected = run(bare, bare_optimizers.make_variables(), 1.0)
    optimizer = mp.wrap(bare_optimizers.make(name, "plain"))
    got = run(
        optimizer, bare_optimizers.make_variables(), optimizer.scale_loss(1.0)
    )
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("where", range(6))
def test_one_bad_number_anywhere_skips_all(where, bad):
    variables = [
        keras.Variable(np.ones(shape), dtype=dtype)
        for shape, dtype in [
            ((), "float32"),
            ((0, 3), "float32"),
            ((2, 2), "float16"),
            ((3,), "bfloat16"),
            ((3,), "float64"),
            ((2, 3, 4), "float32"),
        ]
    ]
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer.scale_loss(1.0)
    gradients = [tf.ones(v.shape, v.dtype) for v in variables]
    size = int(tf.size(gradients[where]))
    if size:
        flat = tf.reshape(gradients[where], [-1]).numpy()
        flat[-1] = bad
        gradients[where] = tf.reshape(tf.constant(flat), variables[where].shape)
    optimizer.apply(gradients, variables)
    skipped = 1 if size else 0
    assert int(optimizer.skipped_steps) == skipped
    assert float(optimizer.loss_scale) == (2.0 if size else 4.0)
    assert int(optimizer.iterations) == 1 - skipped
    for variable in variables:
        expected = 1.0 if skipped else 0.75
        np.testing.assert_array_equal(
            variable.numpy().astype("float64"),
            np.full(variable.shape, expected),
        )


@pytest.mark.slow
def test_a_thousand_variables():
    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(1000)]
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer.build(variables)

    @tf.function
    def step(last):
        gradients = [tf.fill([2], optimizer.scale_loss(0.5))] * 999
        optimizer.apply([*gradients, last])

    step(tf.constant([4.0, 4.0]))
    step(tf.constant([4.0, np.nan]))
    assert [v.numpy().tolist() for v in variables] == [[0.5, 0.5]] * 1000
    assert float(optimizer.loss_scale) == 4.0


def test_zero_gradients_stop_at_the_ceiling():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), growth_interval=10)
    optimizer.build([variable])
    optimizer.scale_loss(1.0)

    @tf.function
    def run(count):
        for _ in tf.range(count):
            optimizer.apply([tf.constant(0.0)])

    run(tf.constant(5000))
    assert float(optimizer.loss_scale) == 2.0**24
    assert int(optimizer.iterations) == 5000


def test_a_scale_below_one_judges_what_it_makes_of_the_gradients():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0), initial_scale=2.0**-4, min_scale=2.0**-20
    )
    optimizer.scale_loss(1.0)
    optimizer.apply([tf.constant(3e38)], [variable])  # / 2**-4 is inf
    assert float(variable) == 1.0
    assert optimizer.found_inf.numpy()


def test_gradients_in_half_precision_do_not_vanish_when_unscaled():
    variable = keras.Variable(0.0)
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    scaled = tf.constant(2.0**-12, "float16")
    optimizer.scale_loss(1.0)
    optimizer.apply([scaled], [variable])
    assert float(variable) == -(2.0**-27)  # zero in float16


def test_skip_nonfinite_false_applies_and_still_backs_off():
    variable = keras.Variable(1.0)
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0), initial_scale=8.0, skip_nonfinite=False
    )
    optimizer.scale_loss(1.0)
    optimizer.apply([tf.constant(np.inf)], [variable])
    assert float(variable) == -np.inf
    assert float(optimizer.loss_scale) == 4.0
    assert optimizer.found_inf.numpy()
    assert int(optimizer.skipped_steps) == 0


def test_an_inner_scale_set_behind_our_back_is_refused():
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    optimizer.scale_loss(1.0)
    optimizer.inner_optimizer.loss_scale_factor = 4.0
    with pytest.raises(ValueError, match="must not be set"):
        optimizer.apply([tf.constant(1.0)], [keras.Variable(1.0)])


def test_wrong_calls_raise():
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    optimizer.scale_loss(1.0)
    a, b = keras.Variable(1.0), keras.Variable(1.0)
    with pytest.raises(ValueError, match="must already be built"):
        optimizer.apply([tf.constant(1.0)])
    optimizer.build([a])
    with pytest.raises(ValueError, match="must match one to one"):
        optimizer.apply([tf.constant(1.0)] * 2, [a])
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.constant(1.0)], [b])
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply([None], [a])
    with pytest.raises(ValueError, match="must be gradients only"):
        optimizer.apply([(tf.constant(1.0), a)], [a])
    optimizer.apply([])
    assert int(optimizer.iterations) == 0
    assert int(optimizer.good_steps) == 0


def test_building_twice_is_harmless():
    variable = keras.Variable([1.0])
    optimizer = mp.wrap("adam")
    optimizer.build([variable])
    before = [v.path for v in optimizer.variables]
    optimizer.build([variable])
    assert [v.path for v in optimizer.variables] == before


def test_no_step_waits_for_the_device(monkeypatch):
    """Nothing is read back to Python while a step is traced or run."""
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer = mp.wrap(keras.optimizers.Adam(), growth_interval=1)
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        optimizer.apply([gradient * optimizer.scale_loss(1.0)])

    def refuse(self, *args):
        raise AssertionError("a host synchronization")

    gradient = tf.ones(3)
    step(gradient)
    kind = type(gradient)
    for name in ("numpy", "__float__", "__bool__", "__int__", "__array__"):
        monkeypatch.setattr(kind, name, refuse)
    step(gradient)
    step(gradient)
    monkeypatch.undo()
    assert step.experimental_get_tracing_count() == 1
    assert int(optimizer.iterations) == 3
