"""Tests for `tf_mixprec.callbacks.loss_scale_logger`."""

import csv

import keras
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
    assert asked == ["loss_scale", "skipped_steps"] * 3


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_another_optimizer_is_refused(policy):
    model = make_mlp("sgd", policy)  # which Keras wraps under mixed_float16
    with pytest.raises(ValueError, match="must be used with an `mp.Loss"):
        fit(model)


def test_an_optimizer_of_its_own_can_be_named():
    other = mp.wrap("sgd", initial_scale=64.0)
    history = make_model().fit(
        X, Y, verbose=0, callbacks=[mp.callbacks.LossScaleLogger(other)]
    )
    assert history.history["loss_scale"] == [64.0]
