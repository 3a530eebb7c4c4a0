"""`tf-mixprec diagnose` and `tf-mixprec find-nonfinite`."""

import json

import keras
import numpy as np
import pytest

import tf_mixprec as mp
from tf_mixprec.cli.main import main


@pytest.fixture
def saved(tmp_path):
    """Returns a function that saves a model and data, and gives the paths."""

    def save(scale=1.0, **arrays):
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Rescaling(
                    scale, dtype="float16", name="rescaling"
                ),
                keras.layers.Dense(4, dtype="mixed_float16", name="hidden"),
                keras.layers.Dense(1, dtype="float32", name="head"),
            ]
        )
        mp.compile(model, "sgd", "mse")
        model.save(tmp_path / "model.keras")
        x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
        np.savez(tmp_path / "data.npz", **{"x": x, "y": x[:, :1], **arrays})
        return str(tmp_path / "model.keras"), str(tmp_path / "data.npz")

    return save


def test_diagnose(saved, tmp_path, capsys):
    page, fields = tmp_path / "page.html", tmp_path / "fields.json"
    options = ["--save", str(page), "--save", str(fields)]
    assert main(["diagnose", *saved(), "--loss-scale", "64", *options]) == 0
    assert "Loss scales from" in capsys.readouterr().out
    assert json.loads(fields.read_text())["loss_scale"] == 64.0
    assert "Loss scales from" in page.read_text()


def test_another_policy(saved, capsys):
    options = ["--policy", "float32", "--loss", "mae"]
    assert main(["diagnose", *saved(), *options]) == 0
    assert "The numbers are in order." in capsys.readouterr().out


def test_find_nonfinite(saved, capsys):
    assert main(["find-nonfinite", *saved()]) == 0
    assert "No inf or nan" in capsys.readouterr().out
    assert main(["find-nonfinite", *saved(scale=1e5)]) == 1
    out = capsys.readouterr().out
    assert "Forward: The output of rescaling" in out


def test_an_error_in_the_numbers_is_the_exit_status(saved, capsys):
    assert main(["diagnose", *saved(scale=1e5)]) == 1
    assert "nonfinite-forward" in capsys.readouterr().out


def test_what_cannot_be_done(saved, capsys):
    path, _ = saved()
    assert main(["diagnose", path, "nowhere.npz"]) == 2
    assert "nowhere.npz" in capsys.readouterr().err
    path, data = saved(y=np.ones((3, 1)))
    assert main(["diagnose", path, data]) == 2
    assert "same number of examples" in capsys.readouterr().err
