"""Bad steps are explained, good ones are left alone."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.callbacks.budget import Budget
from tf_mixprec.callbacks.last_batch import LastBatch
from tf_mixprec.diagnostics import replay
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.subject import Subject

BATCH = 8


def make(policy="mixed_float16", *extra):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu", name="hidden"),
            *extra,
            keras.layers.Dense(8, "relu", name="second"),
            keras.layers.Dense(1, dtype="float32", name="head"),
        ],
        name="model",
    )


def data(batches=6):
    x = np.random.default_rng(0).normal(size=(batches * BATCH, 4))
    return x.astype("float32"), x.sum(axis=1, keepdims=True).astype("float32")


def fit(model, x, y, monitor, **options):
    options = {"verbose": 0, "shuffle": False, "batch_size": BATCH, **options}
    return model.fit(x, y, callbacks=[monitor], **options)


def run(how, x, y, monitor, policy="mixed_float16", **compile_options):
    """Trains in one of the ways there are, and returns the model."""
    model = make(policy)
    optimizer = mp.wrap("sgd", **compile_options)
    if how == "step":
        step = mp.TrainStep(model, optimizer, "mse")
        mp.fit(
            step,
            (x, y),
            verbose=0,
            shuffle=False,
            batch_size=BATCH,
            callbacks=[monitor],
        )
        return model
    mp.compile(model, optimizer, "mse", safe_skip=how == "safe")
    fit(model, x, y, monitor)
    return model


@pytest.mark.parametrize(
    "how",
    [
        "fit",
        pytest.param("safe", marks=pytest.mark.slow),
        pytest.param("step", marks=pytest.mark.slow),
    ],
)
def test_bad_input_is_named(how, tmp_path):
    x, y = data()
    x[3 * BATCH + 2, 1] = np.nan
    monitor = mp.callbacks.NumericsMonitor(
        report_dir=tmp_path, every=2, max_overhead=None
    )
    with pytest.warns(mp.callbacks.NumericsWarning, match="example 2 of the"):
        run(how, x, y, monitor)
    (event,) = monitor.events
    assert (event.culprit.phase, event.step, event.batch) == ("input", 4, 3)
    assert event.history
    assert all(sample.step < 4 for sample in event.history)
    fields = json.loads((tmp_path / "step-0000004.json").read_text())
    assert fields["culprit"]["phase"] == "input"
    assert "nan" in (tmp_path / "step-0000004.html").read_text()


@pytest.mark.parametrize("how", ["fit", "step"])
def test_a_layer_that_overflows_is_named(how):
    x, y = data()
    x[2 * BATCH :] *= 1e5  # beyond float16, in the third batch and after it
    monitor = mp.callbacks.NumericsMonitor()
    with pytest.warns(mp.callbacks.NumericsWarning, match="cast of its input"):
        run(how, x, y, monitor)
    culprits = {(e.culprit.phase, e.culprit.layer) for e in monitor.events}
    assert culprits == {("forward", "hidden")}
    assert monitor.events[0].step == 3


def test_a_scale_that_comes_down_is_no_event():
    x, y = data()
    monitor = mp.callbacks.NumericsMonitor(max_overhead=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = run("fit", x, y, monitor, initial_scale=2.0**24)
    assert int(model.optimizer.skipped_steps) > 0
    assert monitor.events == ()
    assert monitor.passing_events > 0


def test_a_fixed_scale_that_is_too_high_is_one():
    x, y = data()
    monitor = mp.callbacks.NumericsMonitor()
    with pytest.warns(mp.callbacks.NumericsWarning, match="Lower the scale"):
        run("fit", x, y, monitor, dynamic=False, initial_scale=2.0**24)
    assert monitor.events[0].culprit.phase == "loss scale"
    assert monitor.events[0].loss_scale == 2.0**24


class Growing(keras.layers.Layer):
    """Doubles its output in each step of training."""

    def build(self, shape):
        self.factor = self.add_weight(
            shape=(), initializer="ones", trainable=False, name="factor"
        )

    def call(self, x, training=None):
        if training:
            self.factor.assign(self.factor * 2)
        return x * keras.ops.cast(self.factor, x.dtype)


def test_the_climb_to_an_overflow_is_in_the_history():
    x, y = data(20)
    model = make("mixed_float16", Growing(name="growing"))
    # Small gradients, so that it is the forward pass that overflows.
    mp.compile(
        model,
        mp.wrap("sgd", dynamic=False, initial_scale=1.0),
        lambda y, predictions: 1e-6 * predictions,
    )
    monitor = mp.callbacks.NumericsMonitor(every=1, max_overhead=None)
    with pytest.warns(mp.callbacks.NumericsWarning):
        fit(model, x, y, monitor)
    event = next(e for e in monitor.events if e.culprit.phase == "forward")
    assert event.culprit.layer in ("growing", "second")
    climb = [each.outputs[event.culprit.layer] for each in event.history]
    assert len(climb) > 5
    rises = np.diff(np.log2(climb))
    assert np.median(rises) == pytest.approx(1.0, abs=0.7)
    assert "has gained" in event.document().facts["before"]


def test_a_clean_run_has_no_event_and_the_same_weights():
    x, y = data(10)
    with_monitor = mp.callbacks.NumericsMonitor(every=3, max_overhead=None)
    weights = []
    for monitor in (with_monitor, keras.callbacks.Callback()):
        keras.utils.clear_session()
        extra = [
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.BatchNormalization(),
        ]
        model = make("mixed_bfloat16", *extra)
        mp.compile(model, "adam", "mse")
        history = fit(model, x, y, monitor, epochs=2).history
        weights.append((model.get_weights(), history))
    np.testing.assert_equal(weights[0], weights[1])
    assert with_monitor.events == ()
    assert [s.step for s in with_monitor.history] == [3, 6, 9, 12, 15, 18]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_thousand_clean_steps_have_no_finding(policy):
    x, y = data(100)
    monitor = mp.callbacks.NumericsMonitor(every=10)
    model = make(policy)
    mp.compile(model, mp.wrap("adam", growth_interval=50), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, x, y, monitor, epochs=10)
    assert monitor.events == ()
    if policy == "mixed_float16":  # the scale has been found
        assert int(model.optimizer.skipped_steps) > 0


def test_normal_steps_are_traced_once_and_do_no_more():
    x, y = data()
    traces = []

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, dtype="float32")

        def call(self, x):
            traces.append(x.shape)
            return self.dense(x)

    model = Model()
    model.compile(mp.wrap("adam"), "mse")
    model(x[:BATCH])
    del traces[:]
    monitor = mp.callbacks.NumericsMonitor(every=1000)
    fit(model, x, y, monitor, epochs=3)
    assert len(traces) <= 2  # by Keras, with and without a known batch size


def test_the_batch_is_that_of_the_step():
    x, y = data()
    model = make()
    mp.compile(model, "adam", "mse")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.last = LastBatch(self.model)
            self.other = LastBatch(self.model)
            self.last.start()
            self.other.start()

        def on_train_batch_end(self, batch, logs=None):
            assert set(logs) == {"loss"}
            seen.append([each.batch for each in (self.last, self.other)])

        def on_train_end(self, logs=None):
            self.other.stop()
            self.last.stop()

    weights = np.ones(len(x), "float32")
    model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[Look()],
    )
    for index, batches in enumerate(seen):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        for batch in batches:
            for found, all_rows in zip(batch, (x, y, weights), strict=True):
                np.testing.assert_array_equal(found, all_rows[rows])
    assert "train_step" not in vars(model)
    assert "make_train_function" not in vars(model)
    fit(model, x, y, keras.callbacks.Callback())


def test_a_replay_draws_the_same_numbers():
    drawn = []

    class Noise(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.seed = keras.random.SeedGenerator(3)

        def call(self, x):
            noise = keras.random.normal((), seed=self.seed)
            tf.py_function(lambda n: drawn.append(float(n)), [noise], [])
            return x + keras.ops.cast(noise, x.dtype)

    x, y = data(3)
    model = make("mixed_float16", Noise())
    model.compile(mp.wrap("sgd"), "mse")
    fit(model, x, y, keras.callbacks.Callback())
    last = drawn[-1]
    probed = ProbedStep(Subject(model), jit_compile=False, full=False)
    batch = (tf.constant(x[:BATCH]), tf.constant(y[:BATCH]), None)
    replay.with_the_same_numbers(probed, batch, lambda: probed(batch))
    assert drawn[-1] == last


def test_monitors_share_what_is_set_on_a_model():
    x, y = data()
    model = make()
    mp.compile(model, "adam", "mse")
    callbacks = [
        mp.callbacks.NumericsMonitor(every=2, max_overhead=None),
        mp.callbacks.PrecisionDrift(every=2, max_overhead=None),
        mp.callbacks.AdaptivePrecision(),
    ]
    options = {"verbose": 0, "batch_size": BATCH, "callbacks": callbacks}

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, **{**options, "callbacks": [*callbacks, Stops()]})
    model.fit(x, y, **options)
    names = ("train_step", "make_train_function", "_tf_mixprec_last_batch")
    assert not [each for each in names if each in vars(model)]
    assert [each.step for each in callbacks[0].history] == [2, 4, 6]
    assert [each.step for each in callbacks[1].records] == [2, 4, 6]


def test_the_budget_bounds_what_is_spent():
    budget = Budget(0.5)
    budget._began -= 10.0  # ten seconds ago
    budget._spent, budget._last = 4.0, 2.0
    assert not budget.allows()
    budget._last = 0.9
    assert budget.allows()
    assert Budget(None).allows()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"every": 0}, ValueError, "at least 1"),
        ({"every": 1.5}, TypeError, "must be an int"),
        ({"max_overhead": 0.0}, ValueError, "above 0"),
        ({"max_overhead": "x"}, TypeError, "must be a float"),
        ({"replay": "no"}, TypeError, "`replay` must be True or False"),
        ({"report_dir": 3}, TypeError, "`report_dir` must be a string or a"),
        ({"report_dir": __file__}, ValueError, "must be a directory"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        mp.callbacks.NumericsMonitor(**options)


def test_wrong_optimizers():
    x, y = data()
    model = make("float32")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"must be used with an `mp\.Loss"):
        fit(model, x, y, mp.callbacks.NumericsMonitor())
    model.compile(mp.wrap("sgd", skip_nonfinite=False), "mse")
    with pytest.raises(ValueError, match="that skips"):
        fit(model, x, y, mp.callbacks.NumericsMonitor())
