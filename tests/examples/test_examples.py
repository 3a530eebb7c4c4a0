"""Runs every example and the benchmark, small."""

import importlib.util
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys):
    example = load(path)
    example.main(["--epochs", "3"])
    last = capsys.readouterr().out.splitlines()[-1]
    promised = example.__doc__.strip().splitlines()[-1].strip()
    # The same sentence, with other numbers.
    number = r"[0-9.]+"
    pattern = re.sub(number, lambda _: number, promised)
    assert re.fullmatch(pattern, last), last
    assert float(re.search(rf"loss ({number})", last)[1]) < 0.4


def test_benchmark(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load(ROOT / "benchmarks/optimizer_step.py")
    monkeypatch.setitem(benchmark.SIZES, "small", (2, 10))
    monkeypatch.setattr(benchmark, "GROWTH", [(2, 10)])
    file = tmp_path / "figures.json"
    arguments = ["--sizes", "small", "--optimizers", "adam", "--rounds", "2"]
    benchmark.main([*arguments, "--modes", "graph", "--json", str(file)])
    assert "steps: median" in capsys.readouterr().out
    figures = json.loads(file.read_text())["figures"]
    assert [f["table"] for f in figures] == (
        ["steps"] * 3 + ["skips"] + ["clips"] * 3 + ["growth"] * 3
    )
    for figure in figures:
        assert figure["minimum"] <= figure["median"] <= figure["maximum"]
