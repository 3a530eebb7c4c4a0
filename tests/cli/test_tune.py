"""`tf-mixprec tune`: a file and data in, rules out."""

import json

import keras
import numpy as np
import pytest
from diagnostics import weak_models

import tf_mixprec as mp
from tf_mixprec.cli.main import main


@pytest.fixture
def files(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", name="first"),
            weak_models.Cancel(name="cancel"),
            keras.layers.Dense(16, "tanh", name="last"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    x = weak_models.inputs(96)
    y = weak_models.targets(model, x)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return [str(tmp_path / "model.keras"), str(tmp_path / "data.npz")]


OPTIONS = ["--policy", "mixed_float16", "--budget", "0.05"]


def test_prints_and_saves_rules_that_convert(files, tmp_path, capsys):
    rules, page = tmp_path / "rules.json", tmp_path / "report.json"
    saved = ["--rules-out", str(rules), "--save", str(page)]
    assert main(["tune", *files, *OPTIONS, *saved]) == 0
    out = capsys.readouterr().out
    assert "1 of 3 layers stay in float32: cancel" in out
    assert json.loads(page.read_text())["budget"] == 0.05
    model = keras.saving.load_model(files[0])
    read = mp.PrecisionRules.from_json(rules.read_text())
    dtypes = [each.compute_dtype for each in mp.convert(model, read).layers]
    assert dtypes == ["float16", "float32", "float16", "float32"]


def test_without_enough_trials_all_is_float32(files, tmp_path, capsys):
    rules = tmp_path / "rules.json"
    arguments = ["--max-trials", "1", "--rules-out", str(rules)]
    assert main(["tune", *files, *OPTIONS, *arguments]) == 0
    assert "out_of_trials" in capsys.readouterr().out
    read = mp.PrecisionRules.from_json(rules.read_text())
    assert read.policy == "float32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "float32"], "must compute in float16 or bfloat16"),
        (["--budget", "-1"], "must be finite and at least 0"),
        (["--metric", "no_such_metric"], "no_such_metric"),
    ],
)
def test_errors_are_one_line_and_a_status(files, capsys, arguments, message):
    assert main(["tune", *files, *OPTIONS, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("tf-mixprec tune: ")
    assert message in err
    assert "Traceback" not in err
