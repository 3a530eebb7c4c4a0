"""Tests for `tf_mixprec.callbacks.loss_scale_logger`."""

import csv

import keras
import linear_runs as runs
import numpy as np
import pytest
import tensorflow as tf
from models import make_mlp
from models import regression_data

import tf_mixprec as mp

X, Y = regression_data()
BAD_X = np.concatenate([X[:24], np.full_like(X[:8], np.nan)])


def make_model():
    return make_mlp(mp.wrap("sgd", initial_scale=8.0))


def fit(model, *callbacks, **options):
    return model.fit(
        BAD_X,
        Y,
        batch_size=8,
        epochs=3,
        callbacks=[mp.callbacks.LossScaleLogger(), *callbacks],
        **{"verbose": 0, "shuffle": False, **options},
    )


def test_history_has_the_scale_and_the_skipped_steps():
    history = fit(make_model()).history
    assert history["loss_scale"] == [4.0, 2.0, 1.0]
    assert history["skipped_steps"] == [1, 2, 3]


def test_a_csv_file_has_them(tmp_path):
    fit(make_model(), keras.callbacks.CSVLogger(tmp_path / "log.csv"))
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss_scale"]) for row in rows] == [4.0, 2.0, 1.0]
    assert [int(row["skipped_steps"]) for row in rows] == [1, 2, 3]


def test_the_progress_bar_shows_them(capsys):
    fit(make_model(), verbose=2)
    assert "loss_scale: 4.0" in capsys.readouterr().out


def test_tensorboard_writes_them(tmp_path):
    fit(make_model(), keras.callbacks.TensorBoard(tmp_path))
    tags = {
        value.tag
        for file in (tmp_path / "train").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {"epoch_loss_scale", "epoch_skipped_steps"} <= tags


def test_the_device_is_asked_once_an_epoch(monkeypatch):
    asked = []
    original = keras.ops.convert_to_numpy
    monkeypatch.setattr(
        keras.ops,
        "convert_to_numpy",
        lambda x: asked.append(x.name) or original(x),
    )
    fit(make_model())
    assert asked == ["loss_scale", "skipped_steps", "scale_moves"] * 3


INTERVAL = 3
SLOW_WAYS = ("xla", "eager", "graph", "micro_batches")
WAYS = [
    pytest.param(way, marks=pytest.mark.slow if way in SLOW_WAYS else [])
    for way in runs.WAYS
]


def simulated(bad, scale, floor, ceiling, epochs=3):
    """Yields the logs of each epoch, by the rule."""
    good, growths, backoffs, skipped = 0, 0, 0, 0
    for _ in range(epochs):
        seen = [scale]
        for is_bad in bad:
            before = scale
            good = 0 if is_bad else good + 1
            if is_bad:
                scale = max(scale / 2, floor)
            elif good >= INTERVAL:
                scale, good = min(scale * 2, ceiling), 0
            growths += scale > before
            backoffs += scale < before
            skipped += is_bad
            seen.append(scale)
        yield {
            "loss_scale": scale,
            "skipped_steps": skipped,
            "loss_scale_min": min(seen),
            "loss_scale_max": max(seen),
            "loss_scale_growths": growths,
            "loss_scale_backoffs": backoffs,
        }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ("float32", (1.0, 2.0**24)),
        pytest.param("float32", (8.0, 8.0), marks=pytest.mark.slow),
        pytest.param("mixed_float16", (2.0, 16.0), marks=pytest.mark.slow),
        pytest.param("bfloat16", (2.0, 8.0), marks=pytest.mark.slow),
    ],
)
def test_moves_are_those_of_the_rule(way, policy, bounds):
    """As many batches as there are, in turn 3 good ones and a bad one."""
    floor, ceiling = bounds

    def optimizer():
        return mp.wrap(
            keras.optimizers.SGD(runs.RATE),
            initial_scale=8.0,
            growth_interval=INTERVAL,
            min_scale=floor,
            max_scale=ceiling,
        )

    x = runs.X.copy()
    x[3 * runs.BATCH : 4 * runs.BATCH] = np.nan
    model = runs.WAYS[way](optimizer, policy)
    history = runs.fit(model, mp.callbacks.LossScaleLogger(), x=x)
    bad = [batch == 3 for batch in range(runs.BATCHES)]
    for epoch, expected in enumerate(simulated(bad, 8.0, floor, ceiling)):
        assert {k: history[k][epoch] for k in expected} == expected


def test_what_the_user_sets_is_no_move():
    model = make_mlp(mp.wrap("sgd", initial_scale=8.0), run_eagerly=True)
    logger = mp.callbacks.LossScaleLogger()

    class Sets(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.loss_scale = [8.0, 32.0, 4.0, 16.0][batch]

    options = {"batch_size": 8, "verbose": 0, "callbacks": [logger, Sets()]}
    history = model.fit(X, Y, **options).history
    assert history["loss_scale_growths"] == [0]
    assert history["loss_scale_backoffs"] == [0]
    assert history["loss_scale_min"] == [4.0]
    assert history["loss_scale_max"] == [32.0]


def test_counts_go_on_in_the_next_fit_and_trace_once():
    model = runs.compiled(mp.wrap("sgd", initial_scale=2.0**10))
    runs.fit(model, epochs=1)  # without: two backoffs that nobody counts
    traces = runs.traces_of(model)
    first = runs.fit(model, mp.callbacks.LossScaleLogger(), epochs=1)
    count = len(traces)
    assert count > 0
    second = runs.fit(model, mp.callbacks.LossScaleLogger(), epochs=2)
    assert len(traces) == count
    assert first["loss_scale_backoffs"] == [2]
    assert second["loss_scale_backoffs"] == [4, 6]
    assert second["loss_scale_max"] == [2.0**6, 2.0**4]


def test_counts_are_no_state(tmp_path):
    """Files are what they were, and so is the graph of other runs."""
    model = runs.compiled(mp.wrap("sgd", initial_scale=8.0), run_eagerly=True)
    assert model.optimizer.notes.key == (False, False, False)
    before = [variable.path for variable in model.optimizer.variables]
    runs.fit(model, mp.callbacks.LossScaleLogger(), mp.callbacks.ClipMonitor())
    assert [v.path for v in model.optimizer.variables] == before
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.notes.moves is None
    assert float(loaded.optimizer.loss_scale) == 1.0
    names = [
        name
        for name, _ in tf.train.list_variables(
            tf.train.Checkpoint(optimizer=model.optimizer).save(
                tmp_path / "checkpoint"
            )
        )
    ]
    assert not [n for n in names if "moves" in n or "notes" in n]


@pytest.mark.parametrize("traced_before", [False, True])
def test_a_shared_scale_moves_once_a_round(traced_before):
    shared = mp.SharedLossScale(initial_scale=8.0, growth_interval=2)
    optimizers = [shared.wrap("sgd"), shared.wrap("sgd")]
    weights = [keras.Variable([1.0]), keras.Variable([1.0])]

    def round_of(*gradients):
        for optimizer, weight, gradient in zip(
            optimizers, weights, gradients, strict=True
        ):
            optimizer.scale_loss(1.0)
            optimizer.apply([tf.constant([gradient])], [weight])
        shared.update()

    if traced_before:
        round_of(np.nan, 1.0)
    for optimizer in optimizers:
        optimizer.notes.follow_scale()
    for gradients in [(1.0, 1.0), (1.0, 1.0), (1.0, np.inf), (1.0, 1.0)]:
        round_of(*gradients)
    for optimizer in optimizers:
        moves = optimizer.notes.moves.read()
        assert (moves.growths, moves.backoffs) == (1, 1)
        assert (
            moves.largest == 2 * moves.smallest == 2 * float(shared.loss_scale)
        )


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_another_optimizer_is_refused(policy):
    model = make_mlp("sgd", policy)  # which Keras wraps under mixed_float16
    with pytest.raises(ValueError, match="must be used with an `mp.Loss"):
        fit(model)


def test_something_else_than_an_optimizer_is_refused():
    with pytest.raises(TypeError, match="`optimizer` must be a `mp.Loss"):
        mp.callbacks.LossScaleLogger("sgd")


def test_an_optimizer_of_its_own_can_be_named():
    other = mp.wrap("sgd", initial_scale=64.0)
    history = make_model().fit(
        X, Y, verbose=0, callbacks=[mp.callbacks.LossScaleLogger(other)]
    )
    assert history.history["loss_scale"] == [64.0]
