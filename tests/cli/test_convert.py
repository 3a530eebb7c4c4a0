"""`tf-mixprec convert`: files in, files out, and a report."""

import json

import keras
import numpy as np
import pytest

import tf_mixprec as mp
from tf_mixprec.cli.main import main


@pytest.fixture
def files(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, name="first"),
            keras.layers.Dense(8, name="second"),
            keras.layers.Dense(2, name="head"),
        ]
    )
    model.save(tmp_path / "in.keras")
    return model, str(tmp_path / "in.keras"), str(tmp_path / "out.keras")


def dtypes(path):
    model = keras.models.load_model(path)
    return [layer.compute_dtype for layer in model.layers]


def test_converts_and_reports(files, capsys):
    model, source, target = files
    arguments = ["convert", source, target, "--policy", "mixed_bfloat16"]
    assert main([*arguments, "--keep-float32", "sec.*"]) == 0
    assert dtypes(target) == ["bfloat16", "float32", "float32"]
    out = capsys.readouterr().out
    for text in ("first", "second", "head", "--keep-float32", "bfloat16"):
        assert text in out
    x = np.ones((1, 4), "float32")
    converted = keras.models.load_model(target)
    np.testing.assert_allclose(converted(x), model(x), atol=0.05)
    assert main(["convert", target, source, "--policy", "float32"]) == 0
    back = keras.models.load_model(source)
    np.testing.assert_array_equal(back(x), model(x))


def test_rules_come_from_a_file(files, tmp_path):
    _, source, target = files
    rules = mp.PrecisionRules(
        [mp.rules.Rule(policy="float32", path="first")], "mixed_float16"
    )
    file = tmp_path / "rules.json"
    file.write_text(rules.to_json())
    arguments = ["convert", source, target, "--rules", str(file)]
    assert main(arguments) == 0
    assert dtypes(target) == ["float32", "float16", "float16"]
    assert main([*arguments, "--policy", "mixed_bfloat16"]) == 0
    assert dtypes(target) == ["float32", "bfloat16", "bfloat16"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "float61"], "float61"),
        (["--keep-float32", "("], "regular expression"),
        (["--rules", "missing.json"], "missing.json"),
    ],
)
def test_errors_are_one_line_and_a_status(files, capsys, arguments, message):
    _, source, target = files
    assert main(["convert", source, target, *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_a_rule_with_a_misspelt_key_is_an_error(files, tmp_path, capsys):
    _, source, target = files
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [{"polcy": "float32"}]}))
    assert main(["convert", source, target, "--rules", str(file)]) == 1
    err = capsys.readouterr().err
    assert "polcy" in err
    assert "rules.json" in err
    file.write_text("{")
    assert main(["convert", source, target, "--rules", str(file)]) == 1
    assert "rules.json" in capsys.readouterr().err
