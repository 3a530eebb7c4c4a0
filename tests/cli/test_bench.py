"""`tf-mixprec bench`: a model and data in, times out."""

import json

import keras
import numpy as np
import pytest

from tf_mixprec.cli.main import main
from tf_mixprec.policies import matrix_timing


@pytest.fixture(autouse=True)
def _made_up_ceiling(monkeypatch):
    times = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}
    monkeypatch.setattr(
        matrix_timing,
        "measure",
        lambda device: matrix_timing.MatrixTimes(10, times),
    )


@pytest.fixture
def files(tmp_path):
    """Returns paths of a compiled model and of data."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, name="hidden"),
            keras.layers.Dense(2, name="head"),
        ],
        name="small",
    )
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    np.savez(tmp_path / "data.npz", x=rows, y=rows[:, :2])
    return str(tmp_path / "model.keras"), str(tmp_path / "data.npz")


QUICK = ["--seconds", "0", "--xla", "off", "--batch-size", "4"]


def test_it_prints_and_saves(files, tmp_path, capsys):
    path = tmp_path / "report.json"
    arguments = ["--policy", "float32", "--policy", "mixed_bfloat16"]
    arguments += ["--batch-sizes", "2", "8", "--save", str(path)]
    assert main(["bench", *files, *QUICK, *arguments]) == 0
    out = capsys.readouterr().out
    for text in ("Profile of small", "mixed_bfloat16", "Batches of", "Casts"):
        assert text in out
    fields = json.loads(path.read_text())
    assert [v["policy"] for v in fields["variants"]] == [
        "float32",
        "mixed_bfloat16",
    ]
    assert [b["batch_size"] for b in fields["batches"]] == [2, 4, 8]
    assert fields["variants"][0]["graph"]["multiply_adds"] == {
        "float32": 4 * (2 * 4 * 8 + 3 * 8 * 2)
    }


@pytest.mark.slow
def test_xla_is_tried_where_it_is_not_said(files, capsys):
    assert main(["bench", *files, "--seconds", "0", "--loss", "mae"]) == 0
    assert "float32, XLA" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "`batch_size` must be at least 1"),
        (["--policy", "nonsense"], "nonsense"),
        (["--loss", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_be_is_one_line(files, arguments, message, capsys):
    assert main(["bench", *files, *QUICK, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tf-mixprec bench: ")
    assert message in error


def test_files_that_are_not_there(files, tmp_path, capsys):
    model, data = files
    missing = str(tmp_path / "missing")
    assert main(["bench", f"{missing}.keras", data]) == 2
    assert main(["bench", model, f"{missing}.npz"]) == 2
    assert "missing" in capsys.readouterr().err
