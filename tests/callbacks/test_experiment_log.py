"""Tests for `tf_mixprec.callbacks.experiment_log`."""

import json
import platform
import time

import keras
import linear_runs as runs
import numpy as np
import pytest
import tensorflow as tf
from models import make_mlp

import tf_mixprec as mp
from tf_mixprec.callbacks import experiment_facts

WAYS = [
    pytest.param(way, marks=[] if way == "step" else pytest.mark.slow)
    for way in runs.WAYS
]


def strict(text):
    """Returns what a line says; nan and inf are none of JSON."""

    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def lines(path):
    text = path.read_text()
    assert text.endswith("\n")
    return [strict(line) for line in text.splitlines()]


def sgd():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [4], [runs.RATE, runs.RATE / 2]
    )
    return mp.wrap(keras.optimizers.SGD(schedule), initial_scale=256.0)


def quick():
    return runs.compiled(sgd(), run_eagerly=True)


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_is_a_line(way, tmp_path):
    model = runs.WAYS[way](sgd, "float32")
    path = tmp_path / "new" / "log.jsonl"
    start = time.perf_counter()
    history = runs.fit(
        model,
        mp.callbacks.ExperimentLog(path),
        validation_data=(runs.X[:8], runs.Y[:8]),
    )
    seconds = time.perf_counter() - start
    first, *epochs = lines(path)
    assert list(first) == ["start"]
    assert [each["epoch"] for each in epochs] == [0, 1, 2]
    bad = 0 if way == "micro_batches" else 2
    for index, epoch in enumerate(epochs):
        assert epoch["skipped_steps"] == bad
        assert epoch["skip_rate"] == bad / runs.BATCHES
        assert epoch["loss_scale"] == 256.0 / 4 ** (index + 1)
        logged = {k: v for k, v in epoch["logs"].items() if v != "nan"}
        assert logged == {
            name: values[index]
            for name, values in history.items()
            if name in logged
        }
        assert 0 < epoch["seconds"] < seconds
    # The fifth step is the first with the lower one; 4 or 6 are made in each.
    rates = [each["learning_rate"] for each in epochs]
    assert rates == [runs.RATE / (1 if bad else 2), *[runs.RATE / 2] * 2]


def test_examples_are_those_of_training(tmp_path, monkeypatch):
    """By a clock that goes on by a second at each look."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    model = runs.of_a_step(sgd())
    log = mp.callbacks.ExperimentLog(str(tmp_path / "log.jsonl"))
    log.set_model(model)
    log.set_params({})
    log.on_train_begin()
    log.on_epoch_begin(0)
    seen = []
    monkeypatch.setattr(
        experiment_facts, "examples_so_far", lambda model: seen.append(1) or 60
    )
    log.on_train_batch_end(4)
    log.on_test_begin()
    log.on_epoch_end(0, {})
    _, epoch = lines(tmp_path / "log.jsonl")
    assert seen == [1]
    assert epoch["examples_per_second"] == 60
    assert epoch["seconds"] == 2
    assert epoch["skip_rate"] == 0


@pytest.mark.parametrize(
    "validates", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_skipped_steps_have_no_examples(validates, tmp_path, monkeypatch):
    counts = []
    original = experiment_facts.examples_so_far
    monkeypatch.setattr(
        experiment_facts,
        "examples_so_far",
        lambda model: counts.append(original(model)) or counts[-1],
    )
    model = runs.of_a_step(sgd())
    options = {"validation_data": (runs.X, runs.Y)} if validates else {}
    log = mp.callbacks.ExperimentLog(tmp_path / "log.jsonl")
    runs.fit(model, log, epochs=1, **options)
    model.evaluate(runs.X, runs.Y, callbacks=[log], verbose=0)
    good = runs.BATCHES - len(runs.BAD)
    assert counts == [good * runs.BATCH]


def test_the_start_says_what_it_is(tmp_path):
    model = make_mlp(mp.wrap("adam"), jit_compile=False)
    log = mp.callbacks.ExperimentLog(tmp_path / "log.jsonl")
    model.fit(
        np.ones((8, 4)), np.ones((8, 1)), epochs=2, verbose=0, callbacks=[log]
    )
    start = lines(tmp_path / "log.jsonl")[0]["start"]
    assert start["versions"] == {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "tf_mixprec": mp.__version__,
    }
    assert start["model"] == {"name": "mlp", "parameters": 4 * 8 + 8 + 8 + 1}
    assert start["policies"] == {"mixed_float16": 1, "float32": 1}
    assert start["jit_compile"] is False
    assert (start["epochs"], start["steps"]) == (2, 1)
    optimizer = keras.saving.deserialize_keras_object(start["optimizer"])
    assert optimizer.get_config() == model.optimizer.get_config()
    machine = start["machine"]
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 2**28
    gpus = tf.config.list_physical_devices("GPU")
    assert len(machine["gpus"]) == len(gpus)


def test_a_resumed_run_appends(tmp_path):
    path = tmp_path / "log.jsonl"
    for initial_epoch in (0, 2):
        runs.fit(
            quick(),
            mp.callbacks.ExperimentLog(path),
            initial_epoch=initial_epoch,
            epochs=initial_epoch + 2,
        )
    found = [each.get("epoch", "start") for each in lines(path)]
    assert found == ["start", 0, 1, "start", 2, 3]


def test_what_is_no_number_is_a_string(tmp_path):
    class Odd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs |= {"a": np.inf, "b": np.float32("nan"), "c": -np.inf}

    path = tmp_path / "log.jsonl"
    log = mp.callbacks.ExperimentLog(path)
    runs.fit(quick(), Odd(), log, epochs=1)
    logs = lines(path)[-1]["logs"]
    assert [logs[name] for name in "abc"] == ["inf", "nan", "-inf"]


def test_lines_are_there_when_an_epoch_ends(tmp_path):
    path, counts = tmp_path / "log.jsonl", []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counts.append(len(path.read_text().splitlines()))

    log = mp.callbacks.ExperimentLog(path)
    runs.fit(quick(), log, Count(), epochs=3)
    assert counts == [2, 3, 4]


def test_other_optimizers_have_no_scale(tmp_path):
    model = make_mlp("sgd", "float32", run_eagerly=True)
    log = mp.callbacks.ExperimentLog(tmp_path / "log.jsonl")
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[log])
    _, epoch = lines(tmp_path / "log.jsonl")
    names = ("loss_scale", "skipped_steps", "skip_rate")
    assert [epoch[name] for name in names] == [None] * 3
    assert epoch["examples_per_second"] > 0


def test_others_than_the_chief_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_facts, "is_chief", lambda model: False)
    log = mp.callbacks.ExperimentLog(tmp_path / "log.jsonl")
    runs.fit(quick(), log, epochs=1)
    assert not list(tmp_path.iterdir())


def test_the_path_must_be_one():
    with pytest.raises(TypeError, match="`path` must be a string or a path"):
        mp.callbacks.ExperimentLog(None)


@pytest.mark.parametrize("path", ["", "."])
def test_the_path_must_be_that_of_a_file(path):
    with pytest.raises(ValueError, match="`path` must be the path of a file"):
        mp.callbacks.ExperimentLog(path)
