"""Tests for `tf_mixprec.callbacks.clip_monitor`, against NumPy in float64."""

import keras
import linear_runs as runs
import numpy as np
import pytest
import tensorflow as tf
from models import make_mlp

import tf_mixprec as mp
from tf_mixprec.callbacks import clip_monitor
from tf_mixprec.optimizers import norm_record

SLOW_WAYS = ("xla", "step_xla", "eager", "graph")
WAYS = [
    pytest.param(way, marks=pytest.mark.slow if way in SLOW_WAYS else [])
    for way in runs.WAYS
    if way != "micro_batches"  # of which a half of a bad batch is good
]
BOUND = 4.0  # some norms are above


def clipped(gradient, setting, bound):
    """Returns a clipped gradient, and whether it is another one."""
    if setting is None:
        return gradient, False
    if setting == "value":
        return np.clip(gradient, -bound, bound), (abs(gradient) > bound).any()
    norm = np.linalg.norm(gradient)
    return gradient * min(1, bound / norm), norm > bound


def simulated(setting=None, bound=BOUND, epochs=3):
    """Returns the norms and the clipped steps of each epoch."""
    weight = runs.START.astype("float64")
    for _ in range(epochs):
        norms, count = [], 0
        for batch in range(runs.BATCHES):
            if batch in runs.BAD:
                continue
            gradient = runs.gradient(weight, batch)
            norms.append(np.linalg.norm(gradient))
            gradient, is_clipped = clipped(gradient, setting, bound)
            count += is_clipped
            weight = weight - runs.RATE * gradient
        yield np.array(norms), count


def check(history, setting=None, bound=BOUND, rtol=1e-5):
    shares = []
    for epoch, (norms, count) in enumerate(simulated(setting, bound)):
        shares.append(count / len(norms))
        assert history["clipped_share"][epoch] == shares[-1]
        for name, expected in (
            ("grad_norm_p50", np.quantile(norms, 0.5)),
            ("grad_norm_p99", np.quantile(norms, 0.99)),
            ("grad_norm_max", norms.max()),
        ):
            np.testing.assert_allclose(
                history[name][epoch], expected, rtol=rtol
            )
    return shares


def sgd(**options):
    # A scale that float16 holds the gradients with.
    return mp.wrap(
        keras.optimizers.SGD(runs.RATE, **options), initial_scale=16.0
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_global_norm(way):
    model = runs.WAYS[way](lambda: sgd(global_clipnorm=BOUND), "float32")
    history = runs.fit(model, mp.callbacks.ClipMonitor())
    assert 0 < min(check(history, "global")) < 1


@pytest.mark.parametrize(
    "way", ["graph", pytest.param("step", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("policy", "rtol"),
    [
        # The products, and so the gradient, are rounded to 8 or 11 bits.
        ("mixed_bfloat16", 2e-2),
        pytest.param("mixed_float16", 2e-3, marks=pytest.mark.slow),
        pytest.param("bfloat16", 2e-2, marks=pytest.mark.slow),
    ],
)
def test_sixteen_bits_and_masters(way, policy, rtol):
    model = runs.WAYS[way](lambda: sgd(global_clipnorm=BOUND), policy)
    history = runs.fit(model, mp.callbacks.ClipMonitor())
    check(history, "global", rtol=rtol)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("norm", {"clipnorm": BOUND}),
        ("value", {"clipvalue": 3.0}),
        pytest.param(None, {}, marks=pytest.mark.slow),
    ],
)
def test_other_bounds(setting, options):
    model = runs.compiled(sgd(**options))
    history = runs.fit(model, mp.callbacks.ClipMonitor())
    check(history, setting, *options.values())


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("global", {"clip_global_norm": BOUND}),
        pytest.param("norm", {"clip_norm": BOUND}, marks=pytest.mark.slow),
        pytest.param("value", {"clip_value": 3.0}, marks=pytest.mark.slow),
    ],
)
def test_bounds_of_a_step(setting, options):
    model = runs.of_a_step(sgd(), **options)
    history = runs.fit(model, mp.callbacks.ClipMonitor())
    check(history, setting, *options.values())


def test_micro_batches():
    """The norm is that of the average over the good ones."""
    model = runs.of_a_step(sgd(), accumulation_steps=2, clip_global_norm=BOUND)
    history = runs.fit(model, mp.callbacks.ClipMonitor(), epochs=1)
    weight = runs.START.astype("float64")
    norms, count = [], 0
    for batch in range(runs.BATCHES):
        size = runs.BATCH // 2
        start = batch * runs.BATCH + (size if batch in runs.BAD else 0)
        part = slice(start, (batch + 1) * runs.BATCH)
        x = runs.BAD_X[part].astype("float64")
        gradient = 2 * x.T @ (x @ weight - runs.Y[part]) / len(x)
        norms.append(np.linalg.norm(gradient))
        gradient, is_clipped = clipped(gradient, "global", BOUND)
        count += is_clipped
        weight = weight - runs.RATE * gradient
    assert history["clipped_share"] == [count / len(norms)]
    np.testing.assert_allclose(
        history["grad_norm_p50"], [np.median(norms)], rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_large_variables_are_updated_by_a_compiled_function(jit_compile):
    """There the optimizer knows the norm it clips by."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((512,)), keras.layers.Dense(256, use_bias=False)]
    )
    x = np.random.default_rng(0).normal(size=(32, 512)).astype("float32")
    y = np.zeros((32, 256), "float32")
    weight = model.get_weights()[0].astype("float64")
    model.compile(sgd(global_clipnorm=0.01), "mse", jit_compile=jit_compile)
    history = model.fit(
        x,
        y,
        batch_size=32,
        verbose=0,
        callbacks=[mp.callbacks.ClipMonitor()],
    ).history
    norm = np.linalg.norm(2 * x.T @ (x.astype("float64") @ weight)) / y.size
    np.testing.assert_allclose(history["grad_norm_max"], [norm], rtol=1e-5)
    assert history["clipped_share"] == [1.0]


def test_an_epoch_of_skipped_steps_is_nan():
    model = runs.compiled(sgd(global_clipnorm=BOUND), safe_skip=True)
    history = runs.fit(
        model, mp.callbacks.ClipMonitor(), x=runs.X * np.nan, epochs=1
    )
    for name in clip_monitor._NAMES:
        assert np.isnan(history[name])


def test_more_steps_than_there_is_room_for(monkeypatch):
    """They are collected before the first are overwritten."""
    monkeypatch.setattr(norm_record, "CAPACITY", 4)
    monkeypatch.setattr(clip_monitor, "CAPACITY", 4)
    model = runs.compiled(sgd(global_clipnorm=BOUND))
    check(runs.fit(model, mp.callbacks.ClipMonitor()), "global")


def test_the_device_is_asked_once_an_epoch(monkeypatch):
    asked = []
    original = keras.ops.convert_to_numpy
    monkeypatch.setattr(
        keras.ops,
        "convert_to_numpy",
        lambda x: asked.append(getattr(x, "name", "")) or original(x),
    )
    model = runs.compiled(sgd(global_clipnorm=BOUND))
    runs.fit(model, mp.callbacks.ClipMonitor())
    assert asked == ["norm_counts", "grad_norms"] * 3


@pytest.mark.parametrize(
    "way", ["graph", pytest.param("step", marks=pytest.mark.slow)]
)
def test_it_traces_once(way):
    model = runs.WAYS[way](lambda: sgd(global_clipnorm=BOUND), "float32")
    runs.fit(model, epochs=1)
    traces = runs.traces_of(model)
    runs.fit(model, mp.callbacks.ClipMonitor(), epochs=1)
    first = len(traces)
    assert first > 0
    runs.fit(model, mp.callbacks.ClipMonitor(), epochs=2)
    assert len(traces) == first


def test_without_it_nothing_is_noted():
    model = runs.compiled(sgd(global_clipnorm=BOUND))
    runs.fit(model, epochs=1)
    assert model.optimizer.notes.norms is None
    variables = [v.name for v in model.optimizer.variables]
    runs.fit(model, mp.callbacks.ClipMonitor(), epochs=1)
    assert [v.name for v in model.optimizer.variables] == variables


@pytest.mark.parametrize("how", ["apply", "unscale", "graph"])
@pytest.mark.parametrize(
    ("options", "clips"),
    [
        ({"clipnorm": 6.0}, [False, True]),
        ({"clipvalue": 5.5}, [False, True]),
        ({"global_clipnorm": 7.5}, [False, True]),
    ],
)
def test_loops_of_ones_own(how, options, clips):
    """Slices of one row of a sparse gradient add up; nan is no step."""
    table, weight = keras.Variable(np.ones((4, 2))), keras.Variable(np.ones(2))
    variables = [table, weight]
    optimizer = sgd(**options)
    optimizer.build(variables)
    optimizer.notes.record_norms()

    def step(slices, dense):
        optimizer.scale_loss(1.0)
        scale = optimizer.loss_scale
        rows = tf.constant([3, 1, 3])
        sparse = tf.IndexedSlices(slices * scale, rows, tf.constant([4, 2]))
        gradients = [sparse, dense * scale]
        if how == "unscale":
            gradients, found_inf = optimizer.unscale(gradients, variables)
            optimizer.apply_unscaled(gradients, variables, found_inf)
        else:
            optimizer.apply(gradients, variables)

    traced = tf.function(step) if how == "graph" else step
    for factor, dense in [(1.0, 5.0), (1.0, np.nan), (4.0, 5.0)]:
        slices = np.float32([[1, 0], [0, 2], [0.5, 0]]) * factor
        traced(tf.constant(slices), tf.constant([dense, 0.0]))
    found = optimizer.notes.norms.read()
    # 1.5 and 2 in the table, and 5; then 6 and 8, and 5.
    expected = [np.linalg.norm([1.5, 2, 5]), np.linalg.norm([6, 8, 5])]
    np.testing.assert_allclose(found.norms, expected, rtol=1e-6)
    assert (found.steps, found.clipped) == (2, sum(clips))


def test_another_optimizer_is_refused():
    with pytest.raises(ValueError, match="`ClipMonitor` must be used with an"):
        runs.fit(make_mlp("sgd", "float32"), mp.callbacks.ClipMonitor())


def test_something_else_than_an_optimizer_is_refused():
    with pytest.raises(TypeError, match="`optimizer` must be a `mp.Loss"):
        mp.callbacks.ClipMonitor(keras.optimizers.SGD())


def test_accumulating_optimizers_are_refused():
    model = runs.compiled(sgd(gradient_accumulation_steps=2))
    with pytest.raises(
        ValueError, match="must be used without `gradient_accumulation_steps`"
    ):
        runs.fit(model, mp.callbacks.ClipMonitor())
