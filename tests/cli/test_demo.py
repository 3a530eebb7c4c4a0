"""Tests for `tf-mixprec` and its demo."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tf_mixprec.cli import demo
from tf_mixprec.cli import main as command
from tf_mixprec.cli import mnist


def run(*arguments, **environment):
    return subprocess.run(
        arguments,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_the_demo_ends_with_its_table_and_no_noise():
    program = shutil.which("tf-mixprec", path=os.path.dirname(sys.executable))
    result = run(program, "demo", "--quick", "--epochs", "1")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("In mixed_bfloat16 this machine")
    rows = [line.split() for line in lines[-5:-2]]
    assert [row[0] for row in rows[-2:]] == ["float32", "mixed_bfloat16"]
    for row in rows[-2:]:
        assert float(row[1].rstrip("%")) > 50  # percent, after one epoch
        assert row[-2:] == ["32768", "0"]
    assert rows[-2][3] == "1.00x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"), [(["--help"], 0), (["demo", "--epochs", "0"], 2)]
)
def test_usage_is_printed_without_noise(arguments, status):
    program = shutil.which("tf-mixprec", path=os.path.dirname(sys.executable))
    result = run(program, *arguments)
    assert result.returncode == status
    printed = (result.stdout + result.stderr).splitlines()
    assert printed[0].startswith("usage: tf-mixprec")
    assert not [x for x in printed if "0000 00:00" in x or "WARNING" in x]


def test_missing_data_is_said_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(mnist.importlib.util, "find_spec", lambda name: None)
    assert command.main(["demo"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'pip install "tf_mixprec[demo]"' in captured.err


def test_the_data_are_real_and_the_split_is_mixed():
    (train_x, train_y), (test_x, test_y) = mnist.load()
    assert train_x.shape == (4000, 28, 28, 1)
    assert test_x.shape == (1000, 28, 28, 1)
    assert train_x.dtype == "float32"
    assert (train_x.min(), train_x.max()) == (0.0, 1.0)
    for labels in (train_y, test_y):
        assert set(labels) == set(range(10))
    counts = np.bincount(np.concatenate([train_y, test_y]))
    assert counts.tolist() == [500] * 10


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (2.0, "trains this network 2.00 times as fast"),
        (1.0, "trains this network as fast as in float32"),
        (0.5, "trains this network 2.00 times as slowly"),
    ],
)
def test_the_last_sentence_says_what_was_measured(ratio, sentence):
    results = [
        demo.Result("float32", 0.95, 1.0, None, 2.0**15, 0),
        demo.Result("mixed_bfloat16", 0.94, 1.0 / ratio, None, 2.0**15, 0),
        demo.Result("mixed_float16", 0.94, 10.0, 2**20, 2.0**14, 1),
    ]
    summary = demo.summary(results)
    assert "the faster of the two" in summary
    assert sentence in summary
    assert "loses 1.0 points" in summary
    table = demo.table(results)
    assert "not known" in table
    assert re.search(r"mixed_float16 .* 1 MiB +16384 +1$", table)


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_wrong_arguments_are_refused(epochs, capsys):
    with pytest.raises(SystemExit) as error:
        command.main(["demo", "--epochs", epochs])
    assert error.value.code == 2
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.slow
def test_the_package_runs_as_a_module():
    result = run(sys.executable, "-m", "tf_mixprec", "--version")
    assert result.returncode == 0
    assert result.stdout.startswith("tf-mixprec ")
