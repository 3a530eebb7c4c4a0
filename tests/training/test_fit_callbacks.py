"""Keras's callbacks, ours, and all kinds of data, under `mp.fit`."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import make_mlp
from models import regression_data

import tf_mixprec as mp

pytestmark = pytest.mark.slow
BATCH, BATCHES = 8, 3
X, Y = regression_data(BATCH * BATCHES)
LOGS = ["grad_norm", "loss", "loss_scale", "mae", "skipped"]
# One bad batch, so that the loss scale has something to tell.
BAD_X = X.copy()
BAD_X[BATCH] = np.nan


def make_step(optimizer=None, **options):
    return mp.TrainStep(
        make_mlp(),
        optimizer or keras.optimizers.Adam(0.01),
        "mse",
        metrics=["mae"],
        jit_compile=False,
        **options,
    )


def fit(step, *callbacks, data=(X, Y), epochs=2, **options):
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    return mp.fit(step, data, epochs=epochs, callbacks=callbacks, **options)


def state(step):
    variables = [*step.model.weights, *step.optimizer.variables]
    return [np.asarray(v) for v in variables]


def check_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def at_epoch_end(function):
    """Returns a callback that does something with the logs of each epoch."""
    return keras.callbacks.LambdaCallback(on_epoch_end=function)


def scoring(*scores):
    """Returns a callback that logs a score for each epoch."""
    return at_epoch_end(lambda epoch, logs: logs.update(score=scores[epoch]))


class Batches(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self._x = x

    def __len__(self):
        return len(self._x) // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self._x[rows], Y[rows]


def endless(x):
    while True:
        yield from (Batches(x)[i] for i in range(len(x) // BATCH))


# What `fit` is given, and what it needs beside.
KINDS = {
    "arrays": lambda: ((X, Y), {}),
    "tf_data": lambda: (
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH),
        {"batch_size": None},
    ),
    "generator": lambda: (
        endless(X),
        {"batch_size": None, "steps_per_epoch": BATCHES},
    ),
    "py_dataset": lambda: (Batches(X), {"batch_size": None}),
}


@pytest.fixture(scope="module")
def by_hand():
    """The state after a loop over two epochs, and the loss of each."""
    step = make_step()
    losses = []
    for _ in range(2):
        step.reset_metrics()
        for index in range(BATCHES):
            losses.append(float(step(*Batches(X)[index])["loss"]))
    return state(step), np.reshape(losses, (2, BATCHES)).mean(axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_data_make_the_steps_of_a_loop(kind, by_hand):
    data, options = KINDS[kind]()
    # An endless generator goes on from where it was, so it is no data to
    # validate with.
    validation = (X, Y) if kind == "generator" else KINDS[kind]()[0]
    step = make_step()
    history = fit(
        step,
        data=data,
        validation_data=validation,
        validation_batch_size=BATCH if isinstance(validation, tuple) else None,
        **options,
    ).history
    expected, losses = by_hand
    check_equal(state(step), expected)
    assert sorted(history) == sorted([*LOGS, "val_loss", "val_mae"])
    # Sums of float32, in another order.
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-6)
    evaluated = step.evaluate((X, Y), batch_size=BATCH)
    assert history["val_loss"][-1] == evaluated["loss"]
    assert history["val_mae"][-1] == evaluated["mae"]


def test_callbacks_see_what_keras_shows_them():
    calls, epoch_logs = [], []

    def note(name):
        return lambda index, logs: calls.append((name, index))

    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=note("epoch"),
        on_train_begin=lambda logs: calls.append("begin"),
        on_train_end=lambda logs: calls.append("end"),
        on_epoch_end=lambda epoch, logs: epoch_logs.append(dict(logs)),
        on_train_batch_begin=note("batch"),
        on_train_batch_end=lambda batch, logs: calls.append(sorted(logs)),
    )
    history = fit(make_step(), callback, data=(BAD_X, Y), epochs=3)
    epoch = [
        each for i in range(BATCHES) for each in (("batch", i), ["loss", "mae"])
    ]
    assert calls == [
        "begin",
        *[each for e in range(3) for each in (("epoch", e), *epoch)],
        "end",
    ]
    assert [sorted(logs) for logs in epoch_logs] == [LOGS] * 3
    assert {k: [e[k] for e in epoch_logs] for k in LOGS} == history.history
    assert history.history["skipped"] == [1, 1, 1]
    assert history.history["loss_scale"] == [2.0**14, 2.0**13, 2.0**12]


def test_initial_epoch_and_class_weight_are_passed_on():
    history = fit(make_step(), initial_epoch=1, epochs=3)
    assert history.epoch == [1, 2]
    labels = np.tile([0, 1], len(Y) // 2)
    weighted, alone = make_step(), make_step()
    fit(weighted, data=(X, labels), class_weight={0: 0.0, 1: 1.0})
    fit(alone, data=(X, labels, labels))
    check_equal(state(weighted), state(alone))


def test_a_checkpoint_is_loaded_with_the_same_predictions(tmp_path):
    path = tmp_path / "model.keras"
    step = make_step()
    fit(step, keras.callbacks.ModelCheckpoint(path))
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), step.predict(X))
    assert isinstance(loaded.optimizer, mp.LossScaleOptimizer)
    check_equal(
        [np.asarray(v) for v in loaded.optimizer.variables],
        [np.asarray(v) for v in step.optimizer.variables],
    )


def test_the_best_weights_are_checkpointed_and_loaded(tmp_path):
    path = tmp_path / "best.weights.h5"
    predictions = []
    step = make_step()
    fit(
        step,
        scoring(3, 1, 2),
        keras.callbacks.ModelCheckpoint(
            path,
            monitor="score",
            mode="min",
            save_best_only=True,
            save_weights_only=True,
        ),
        at_epoch_end(lambda *_: predictions.append(step.predict(X))),
        epochs=3,
    )
    other = make_step()
    fit(other, epochs=1)
    other.model.load_weights(path)
    np.testing.assert_array_equal(other.predict(X), predictions[1])
    assert (predictions[1] != predictions[2]).any()


def test_early_stopping_restores_the_best_weights():
    weights = []
    step = make_step()
    history = fit(
        step,
        scoring(3, 1, 2, 4),
        at_epoch_end(lambda *_: weights.append(step.model.get_weights())),
        keras.callbacks.EarlyStopping(
            "score", mode="min", patience=2, restore_best_weights=True
        ),
        epochs=9,
    )
    assert len(history.epoch) == 4
    check_equal(step.model.get_weights(), weights[1])
    assert (weights[1][0] != weights[3][0]).any()


@pytest.mark.slow
def test_early_stopping_on_a_log_of_the_step():
    history = fit(
        make_step(),
        keras.callbacks.EarlyStopping("grad_norm", mode="max", patience=1),
        epochs=9,
    )
    norms = history.history["grad_norm"]
    assert norms[-1] <= max(norms[:-1])
    assert len(norms) < 9


@pytest.mark.parametrize(
    "callback",
    [
        lambda: keras.callbacks.ReduceLROnPlateau(
            "score", mode="min", factor=0.5, patience=2
        ),
        lambda: keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: 0.25 if epoch < 3 else 0.125
        ),
    ],
    ids=["plateau", "schedule"],
)
def test_the_learning_rate_of_the_inner_optimizer_changes(callback):
    step = make_step(keras.optimizers.SGD(0.25))
    history = fit(step, scoring(1, 1, 1, 1), callback(), epochs=4)
    assert history.history["learning_rate"] == [0.25, 0.25, 0.25, 0.125]
    inner = step.optimizer.inner_optimizer
    assert float(inner.learning_rate) == 0.125


def test_a_csv_file_has_the_history(tmp_path):
    path = tmp_path / "log.csv"
    history = fit(make_step(), keras.callbacks.CSVLogger(path), data=(BAD_X, Y))
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for name in LOGS:
        assert [float(row[name]) for row in rows] == history.history[name]


def test_tensorboard_has_the_history(tmp_path):
    step = make_step()
    history = fit(step, keras.callbacks.TensorBoard(tmp_path, histogram_freq=1))
    scalars = {}
    for file in (tmp_path / "train").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    scalars.setdefault(value.tag, []).append(number)
    for name in LOGS:
        # Float32 in the file.
        expected = np.float32(history.history[name])
        np.testing.assert_array_equal(scalars[f"epoch_{name}"], expected)


class InterruptionError(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """Ends a run in its second epoch."""

    def __init__(self):
        super().__init__()
        self._epoch = -1

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._epoch == 1 and batch == 1:
            raise InterruptionError


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"accumulation_steps": 2, "clip_global_norm": 0.5},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["whole", "accumulating"],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, options):
    def run(*callbacks):
        step = make_step(**options)
        history = fit(step, *callbacks, data=(BAD_X, Y), epochs=3)
        return step, history

    uninterrupted, expected = run()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptionError):
        run(backup, Interrupt())
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    step, history = run(backup)
    assert history.epoch == [1, 2]
    check_equal(state(step), state(uninterrupted))
    for name in LOGS:
        assert history.history[name] == expected.history[name][1:]
    # Some steps were made, and some not.
    assert int(step.optimizer.iterations) > 0
    if not options:
        assert int(step.optimizer.skipped_steps) == 3


@pytest.mark.parametrize(
    "module",
    [pytest.param(keras, marks=pytest.mark.slow), mp],
    ids=["Keras's", "ours"],
)
def test_terminate_on_nan(module):
    """Of the model's inputs; of its loss alone below."""
    callback = module.callbacks.TerminateOnNaN()
    history = fit(make_step(), callback, data=(BAD_X, Y))
    assert len(history.epoch) == 2
    assert np.isfinite(history.history["loss"]).all()


class NanLoss(mp.TrainStep):
    """The loss is nan, its gradient is not."""

    def compute_loss(self, model, batch, training=True):
        x, y = batch
        loss = tf.reduce_mean(tf.square(model(x, training=training) - y))
        return loss + tf.stop_gradient(np.nan), {"value": loss}


@pytest.mark.parametrize(
    "module",
    [pytest.param(keras, marks=pytest.mark.slow), mp],
    ids=["Keras's", "ours"],
)
def test_terminate_on_nan_of_a_loss_of_ones_own(module):
    step = NanLoss(make_mlp(), "sgd", jit_compile=False)
    history = fit(step, module.callbacks.TerminateOnNaN())
    assert len(history.epoch) == 1
    assert np.isfinite(history.history["value"]).all()


def test_our_callbacks():
    step = make_step()
    guard = mp.callbacks.OverflowGuard(patience=4, action="stop")
    with pytest.warns(mp.LossScaleWarning, match="The last 6 steps"):
        history = fit(
            step,
            mp.callbacks.LossScaleLogger(),
            guard,
            data=(X * np.nan, Y),
            epochs=9,
        )
    assert history.history["skipped_steps"] == [3, 6]
    assert history.history["loss_scale"] == [2.0**12, 2.0**9]
    assert len(step.optimizer.nonfinite_counts) == 4


@pytest.mark.slow
def test_moving_averages_are_swapped_in():
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    step = make_step(optimizer)
    seen = []

    def note(*_):
        seen.append(step.model.get_weights())

    fit(
        step,
        at_epoch_end(note),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        at_epoch_end(note),
        epochs=1,
    )
    weights, averages = seen
    assert (weights[0] != averages[0]).any()
    # What Keras's `fit` leaves in the model at the end.
    check_equal(step.model.get_weights(), averages)


def test_the_progress_bar_shows_the_logs(capsys):
    fit(make_step(), epochs=1, verbose=2)
    shown = capsys.readouterr().out
    for name in LOGS:
        assert f" {name}: " in shown


@pytest.mark.slow
def test_a_checkpoint_of_a_loss_of_ones_own(tmp_path):
    path = tmp_path / "model.keras"
    step = NanLoss(make_mlp(), "sgd", jit_compile=False)
    fit(step, keras.callbacks.ModelCheckpoint(path))
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), step.predict(X))
