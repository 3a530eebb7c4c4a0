"""Tests for `tf_mixprec.callbacks.update_monitor`."""

import itertools
import re
import warnings

import keras
import linear_runs as runs
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from half_ulps import expected_below
from models import make_mlp

import tf_mixprec as mp
from tf_mixprec.callbacks import update_monitor
from tf_mixprec.diagnostics import update_statistics

SLOW_WAYS = ("xla", "step_xla", "eager", "micro_batches")
WAYS = [
    pytest.param(way, marks=pytest.mark.slow if way in SLOW_WAYS else [])
    for way in runs.WAYS
]


def sgd(rate=runs.RATE, **options):
    return mp.wrap(keras.optimizers.SGD(rate), initial_scale=16.0, **options)


class Weights(keras.callbacks.Callback):
    """Keeps the weights, or masters, around each batch."""

    def __init__(self):
        super().__init__()
        self.before, self.after = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.before.append(self.now())

    def on_train_batch_end(self, batch, logs=None):
        self.after.append(self.now())

    def now(self):
        values = self.model.optimizer.master_weights(self.model).values()
        return [keras.ops.convert_to_numpy(each).copy() for each in values]


def check(records, weights, steps_of):
    """Checks records of a model whose every gradient is nonzero.

    Args:
        records: The records.
        weights: A `Weights`.
        steps_of: By batch that was sampled and made, the step.
    """
    assert sorted({each.step for each in records}) == list(steps_of.values())
    expected = []
    for batch, step in steps_of.items():
        for old, new in zip(
            weights.before[batch], weights.after[batch], strict=True
        ):
            ratios = (np.abs(new - old) / np.abs(old))[old != 0]
            median = np.median(ratios) if ratios.size else np.nan
            shares = [
                (old == new).mean(),
                expected_below(old, new, "bfloat16").mean(),
                expected_below(old, new, "float16").mean(),
            ]
            expected.append([step, old.size, median, *shares])
    found = [
        [
            each.step,
            each.elements,
            each.median_ratio,
            each.dead,
            each.dead_bfloat16,
            each.dead_float16,
        ]
        for each in records
    ]
    # In float32: the quotient is rounded there.
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_records_are_of_the_weights(way):
    """Every second batch: 0, 2 and 4, of which the last is skipped."""
    model = runs.WAYS[way](sgd, "float32")
    monitor, weights = mp.callbacks.UpdateMonitor(every=2), Weights()
    history = runs.fit(model, weights, monitor, epochs=2)
    steps_of = {0: 1, 2: 2, 6: 5, 8: 6}
    if way == "micro_batches":  # a half of a bad batch is good
        steps_of = {0: 1, 2: 3, 4: 5, 6: 7, 8: 9, 10: 11}
    check(monitor.records, weights, steps_of)
    for each in monitor.records:
        assert (each.layer, each.variable) == (
            model.layers[0].path,
            model.layers[0].kernel.path,
        )
    for epoch in range(2):
        half = len(monitor.records) // 2
        seen = monitor.records[epoch * half : (epoch + 1) * half]
        assert history["dead_updates"][epoch] == np.mean([s.dead for s in seen])
        assert history["update_ratio"][epoch] == np.median(
            [s.median_ratio for s in seen]
        )


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("bfloat16", {"storage": "remainder"}),
        pytest.param(
            "bfloat16", {"storage": "float32"}, marks=pytest.mark.slow
        ),
        pytest.param("float16", {}, marks=pytest.mark.slow),
        pytest.param("mixed_float16", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "way", ["graph", pytest.param("step", marks=pytest.mark.slow)]
)
def test_masters_are_compared_where_there_are_some(policy, options, way):
    model = runs.WAYS[way](lambda: sgd(2.0**-12, **options), policy)
    monitor, weights = mp.callbacks.UpdateMonitor(every=3), Weights()
    runs.fit(model, weights, monitor, epochs=2, x=runs.X)
    check(monitor.records, weights, {0: 1, 3: 4, 6: 7, 9: 10})
    assert all(each.dead == 0 for each in monitor.records)
    assert any(each.dead_bfloat16 > 0 for each in monitor.records)


@pytest.mark.parametrize(
    ("policy", "dtype", "rate"),
    [
        ("bfloat16", ml_dtypes.bfloat16, 2.0**-13),
        pytest.param("float16", np.float16, 2.0**-18, marks=pytest.mark.slow),
    ],
)
def test_weights_without_masters_lose_updates(policy, dtype, rate):
    model = runs.compiled(sgd(rate, master_weights=False), policy)
    monitor = mp.callbacks.UpdateMonitor(every=1, patience=2)
    with pytest.warns(
        mp.callbacks.DeadUpdateWarning,
        match=r"in 2 samples in a row: linear/only \(100%\).*with float32 "
        r"masters \(`mp.wrap`",
    ) as caught:
        history = runs.fit(model, monitor, epochs=2, x=runs.X)
    classes = [each.category for each in caught]
    assert classes.count(mp.callbacks.DeadUpdateWarning) == 1
    (weight,) = model.get_weights()
    np.testing.assert_array_equal(weight, runs.START.astype(dtype))
    assert history["dead_updates"] == [1.0, 1.0]
    assert {each.dead for each in monitor.records} == {1.0}


@pytest.mark.parametrize(
    ("narrow", "there", "missing"),
    [
        ({"a", "b"}, ["`mp.wrap` does"], "learning rate"),
        ({"c"}, ["raise the learning rate of .*\\(a, b\\)"], "mp.wrap"),
        ({"b"}, ["`mp.wrap` does", r"already \(a\), or freeze"], "(a, b)"),
    ],
)
def test_the_remedy_is_of_the_dtype(narrow, there, missing):
    text = update_monitor._message({"a": 0.9, "b": 0.8}, 3, narrow)
    assert all(re.search(each, text) for each in there)
    assert missing not in text


def test_stochastic_rounding_loses_nothing_on_average():
    optimizer = sgd(2.0**-13, master_weights=False, rounding="stochastic")
    model = runs.compiled(optimizer, "bfloat16", run_eagerly=True)
    monitor = mp.callbacks.UpdateMonitor(every=1, patience=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mp.callbacks.DeadUpdateWarning)
        runs.fit(model, monitor, epochs=1, x=runs.X)
    assert any(each.dead > 0 for each in monitor.records)


def make_embedding():
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((1,), dtype="int32"),
        keras.layers.Embedding(8, 4, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, use_bias=False, name="head"),
    ]
    return keras.Sequential(layers, name="words")


@pytest.mark.parametrize("frozen", [False, True])
def test_only_elements_with_a_gradient_count(frozen):
    """Sparse gradients, of which two slices are of one row."""
    model = make_embedding()
    model.get_layer("head").trainable = not frozen
    model.compile(sgd(), "mse", jit_compile=False)
    monitor = mp.callbacks.UpdateMonitor()
    x, y = np.array([[1], [5], [5]]), np.ones((3, 1), "float32")
    model.fit(x, y, callbacks=[monitor], verbose=0)
    elements = {each.layer: each.elements for each in monitor.records}
    assert elements == (
        {"words/table": 8} if frozen else {"words/table": 8, "words/head": 4}
    )


@pytest.mark.parametrize("traced", [False, True])
def test_masks_are_of_the_bits(traced):
    """Subnormal gradients are some, and zeros of either sign are none."""
    dtypes = ("float32", "float64", "float16", "bfloat16")
    values = [0.0, -0.0, 1.0, -1.0, 1e-40, -2e-39, 3e-7]
    variables = [keras.Variable(np.ones(7), dtype=d) for d in dtypes]
    optimizer = mp.wrap("sgd", initial_scale=1.0)
    optimizer.build(variables)
    optimizer.notes.make_masks()
    optimizer.notes.notes_masks = True
    gradients = [
        tf.constant(np.array(values).astype(v.dtype)) for v in variables
    ]

    def step():
        optimizer.scale_loss(1.0)
        optimizer.apply(gradients[:-1], variables[:-1])

    (tf.function(step) if traced else step)()
    for variable, gradient in zip(variables[:-1], gradients, strict=False):
        np.testing.assert_array_equal(
            optimizer.notes.masks.of(variable).numpy(), gradient.numpy() != 0
        )
    assert not optimizer.notes.masks.of(variables[-1]).numpy().any()


def test_some_layers():
    model = make_mlp(sgd(), "float32", run_eagerly=True)
    monitor = mp.callbacks.UpdateMonitor(layers=["nothing", ".*/he.d"])
    model.fit(np.ones((8, 4)), np.ones((8, 1)), callbacks=[monitor], verbose=0)
    assert [each.variable for each in monitor.records] == [
        "mlp/head/kernel",
        "mlp/head/bias",
    ]


def test_layers_that_are_not_there_are_refused():
    model = runs.compiled(sgd())
    with pytest.raises(ValueError, match="`layers` must match.*linear/only"):
        runs.fit(model, mp.callbacks.UpdateMonitor(layers="other"))


def test_a_model_without_an_input_is_sampled_from_the_second_batch():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(sgd(), "mse", jit_compile=False)
    monitor = mp.callbacks.UpdateMonitor(every=3)
    runs.fit(model, monitor, epochs=1, x=runs.X)
    assert sorted({each.step for each in monitor.records}) == [2, 5]


@pytest.mark.parametrize(
    "way", ["step", pytest.param("graph", marks=pytest.mark.slow)]
)
def test_two_functions_are_traced_once(way):
    """And the device gives one tensor for each sample."""
    model = runs.WAYS[way](sgd, "float32")
    traces = runs.traces_of(model)
    monitor = mp.callbacks.UpdateMonitor(every=2)
    runs.fit(model, monitor, epochs=1)
    per_function = len(traces)
    usual = model.train_function
    runs.fit(model, monitor, epochs=2)
    assert len(traces) == per_function
    assert model.train_function == usual
    for each in (monitor._meter._values, monitor._meter._compared):
        assert each.experimental_get_tracing_count() == 1


def test_only_samples_are_read(monkeypatch):
    model = runs.compiled(sgd(), run_eagerly=True)
    monitor = mp.callbacks.UpdateMonitor(every=4)
    shapes = []
    original = keras.ops.convert_to_numpy
    monkeypatch.setattr(
        keras.ops,
        "convert_to_numpy",
        lambda x: shapes.append(tuple(x.shape)) or original(x),
    )
    runs.fit(model, monitor, epochs=2)
    # Batches 0 and 4: a row for the variable and one for the steps.
    assert shapes == [(2, len(update_statistics.COLUMNS))] * 4


def writes_masks(function):
    graph = function.graph.as_graph_def()
    nodes = itertools.chain(
        graph.node, *(each.node_def for each in graph.library.function)
    )
    return any(node.op == "LeftShift" for node in nodes)


def test_the_other_steps_are_what_they_are():
    """Their graph is that of a step without the callback."""
    model = runs.of_a_step(sgd())
    model.make_train_function()
    step = model.train_function.__self__._step
    runs.fit(model, mp.callbacks.UpdateMonitor(every=2), epochs=1)
    sizes = {}
    for key, function in step._functions.items():
        (concrete,) = function._list_all_concrete_functions()
        sizes[key] = sum(1 for _ in concrete.graph.as_graph_def().node)
        assert writes_masks(concrete) == key[-1]
    plain = runs.of_a_step(sgd())
    plain.make_train_function()
    runs.fit(plain, epochs=1)
    ((key, function),) = plain.train_function.__self__._step._functions.items()
    (concrete,) = function._list_all_concrete_functions()
    assert sizes[key] == sum(1 for _ in concrete.graph.as_graph_def().node)


def test_it_goes_with_other_callbacks():
    """Which make the train function anew, one of them after a batch."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(sgd(), "mse", jit_compile=False)
    monitor = mp.callbacks.UpdateMonitor(every=1)
    guard = mp.callbacks.OverflowGuard(patience=1, check_every=1)
    with pytest.warns(mp.LossScaleWarning) as caught:
        history = runs.fit(
            model,
            guard,
            monitor,
            mp.callbacks.ClipMonitor(),
            mp.callbacks.LossScaleLogger(),
            epochs=1,
        )
    assert [
        re.findall(r"kernel \((\d)\)", str(each.message))
        for each in caught
        if each.category is mp.LossScaleWarning
    ] == [["1"], ["2"]]
    assert history["skipped_steps"] == [2]
    assert history["loss_scale_backoffs"] == [2]
    assert sorted({each.step for each in monitor.records}) == [2, 3, 4]


def test_an_epoch_without_samples_is_nan():
    model = runs.compiled(sgd(), safe_skip=True, run_eagerly=True)
    history = runs.fit(
        model,
        mp.callbacks.UpdateMonitor(),
        x=runs.X * np.nan,
        epochs=1,
    )
    assert np.isnan(history["dead_updates"])
    assert np.isnan(history["update_ratio"])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"every": 0}, ValueError, "`every` must be at least 1"),
        ({"patience": 1.0}, TypeError, "`patience` must be an int"),
        ({"threshold": 2}, ValueError, "`threshold` must be between 0 and 1"),
        ({"threshold": "1"}, TypeError, "`threshold` must be a float"),
        ({"layers": 3}, TypeError, "`layers` must be None, a regular"),
        ({"layers": "("}, ValueError, "`layers` must be a regular expression"),
        ({"layers": ["a", "*"]}, ValueError, r"of which '\*' is none"),
        ({"optimizer": "sgd"}, TypeError, "`optimizer` must be a `mp.Loss"),
    ],
)
def test_wrong_arguments_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        mp.callbacks.UpdateMonitor(**options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: make_mlp("sgd", "float32"), "must be used with an `mp.Loss"),
        (
            lambda: runs.compiled(sgd(), steps_per_execution=2),
            "must be used with `steps_per_execution=1`",
        ),
    ],
)
def test_other_models_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        runs.fit(make(), mp.callbacks.UpdateMonitor())
