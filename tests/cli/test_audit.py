"""`tf-mixprec audit`, and what subcommands with a model share."""

import argparse
import json
import sys

import keras
import numpy as np
import pytest

import tf_mixprec as mp
from tf_mixprec.cli import reporting
from tf_mixprec.cli.main import main


@pytest.fixture
def model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, dtype="mixed_bfloat16", name="first"),
            keras.layers.Dense(8, dtype="float32", name="head"),
        ]
    )


@pytest.fixture
def path(model, tmp_path):
    mp.compile(model, "sgd", "mse")
    model.save(tmp_path / "model.keras")
    return str(tmp_path / "model.keras")


def test_prints_and_saves(path, tmp_path, capsys):
    names = ["a.html", "a.json", "a.md", "a.csv", "a.txt"]
    options = [f"--save={tmp_path / name}" for name in names]
    assert main(["audit", path, "--batch-size", "16", *options]) == 0
    out = capsys.readouterr().out
    assert "Audit of sequential" in out
    assert "first" in out
    assert all((tmp_path / name).stat().st_size > 100 for name in names)
    assert json.loads((tmp_path / "a.json").read_text())["batch_size"] == 16


def test_an_error_is_the_exit_status(tmp_path, capsys):
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, dtype="mixed_float16")]
    )
    model.compile("sgd", "mse", auto_scale_loss=False)
    model.save(tmp_path / "model.keras")
    assert main(["audit", str(tmp_path / "model.keras")]) == 1
    assert "no-loss-scale" in capsys.readouterr().out


def test_another_policy(path, capsys):
    assert main(["audit", path, "--policy", "float32"]) == 0
    assert "bfloat16" not in capsys.readouterr().out.partition("Layers\n")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.keras"], "There is no file missing.keras"),
        (["PATH", "--batch-size", "0"], "must be an int of at least 1"),
        (["PATH", "--policy", "float61"], "float61"),
        (["PATH", "--import", "no_such_module"], "no_such_module"),
        ([__file__], "must be a model that Keras can load"),
    ],
)
def test_errors_are_one_line_and_a_status(path, capsys, arguments, message):
    arguments = [path if each == "PATH" else each for each in arguments]
    assert main(["audit", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("tf-mixprec audit: ")
    assert message in err
    assert "Traceback" not in err


def test_a_report_of_no_known_kind_is_refused_at_once(path, capsys):
    with pytest.raises(SystemExit):
        main(["audit", path, "--save", "audit.pdf"])
    assert "must end in one of .html" in capsys.readouterr().err


def test_classes_of_users_are_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "audited_layers_of_mine.py").write_text(
        "import keras\n"
        "@keras.saving.register_keras_serializable('mine')\n"
        "class Twice(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return 2.0 * x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    module = __import__("audited_layers_of_mine")
    keras.Sequential([keras.Input((8,)), module.Twice()]).save("model.keras")
    del sys.modules["audited_layers_of_mine"]
    keras.saving.get_custom_objects().pop("mine>Twice")
    assert main(["audit", "model.keras"]) == 2
    assert "--import MODULE" in capsys.readouterr().err
    command = ["audit", "model.keras", "--import", "audited_layers_of_mine"]
    assert main(command) == 0
    assert "Twice" in capsys.readouterr().out


def test_a_lambda_is_loaded_only_where_asked_for(tmp_path, capsys):
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Lambda(lambda x: 2.0 * x)]
    )
    model.save(tmp_path / "model.keras")
    path = str(tmp_path / "model.keras")
    assert main(["audit", path]) == 2
    err = capsys.readouterr().err
    assert "if you trust the file, give `--unsafe`" in err
    assert "safe_mode" not in err
    assert main(["audit", path, "--unsafe"]) == 0
    assert main(["convert", path, path]) == 1
    assert "give `--unsafe`" in capsys.readouterr().err
    assert main(["convert", path, path, "--unsafe"]) == 0


def test_a_loss_that_is_not_known_does_not_keep_a_model_from_loading(
    model, tmp_path
):
    def own_loss(y, y_pred):
        return keras.ops.mean(y_pred)

    model.compile("sgd", own_loss)
    model.save(tmp_path / "model.keras")
    arguments = argparse.Namespace(
        model=tmp_path / "model.keras", imports=[], unsafe=False
    )
    assert not reporting.load_model(arguments).compiled


def loaded(path, **arrays):
    np.savez(path, **arrays)
    return reporting.load_data(argparse.Namespace(data=path))


def test_data_have_the_structure_of_their_names(tmp_path):
    path = tmp_path / "data.npz"
    one, two = np.ones((2, 3)), np.zeros((2, 1))
    x, y = loaded(path, x=one, y=two)
    np.testing.assert_array_equal(x, one)
    np.testing.assert_array_equal(y, two)
    x, y = loaded(path, **{"x/1": two, "x/0": one, "y/b": one, "y/a": two})
    assert [each.shape for each in x] == [(2, 3), (2, 1)]
    assert {name: each.shape for name, each in y.items()} == {
        "a": (2, 1),
        "b": (2, 3),
    }


def test_data_must_have_both(tmp_path):
    with pytest.raises(ValueError, match="must have arrays `x` and `y`"):
        loaded(tmp_path / "data.npz", x=np.ones(2))
    (tmp_path / "data.npz").write_text("x")
    with pytest.raises(ValueError, match=r"must be an `\.npz` file"):
        reporting.load_data(argparse.Namespace(data=tmp_path / "data.npz"))
