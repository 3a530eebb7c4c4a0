"""Runs every example and the benchmarks, small."""

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


LONG = ("04_gan_two_optimizers", "05_two_workers")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[pytest.mark.slow] if path.stem in LONG else []
        )
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
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


@pytest.mark.slow
def test_benchmark_of_the_train_step(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load(ROOT / "benchmarks/train_step.py")
    tiny = {"batch": 2, "features": 3, "width": 4, "pixels": 8, "steps": 3}
    for name, sizes in benchmark.SIZES.items():
        small = {key: tiny.get(key, 1) for key in sizes}
        monkeypatch.setitem(benchmark.SIZES, name, small)
    for name, make in benchmark.MODELS.items():
        model = make(**benchmark.SIZES[name])
        assert model.output_shape == (2, benchmark.CLASSES)
    file = tmp_path / "figures.json"
    arguments = ["--models", "mlp", "--rounds", "2", "--json", str(file)]
    benchmark.main(arguments)
    assert "ours bfloat16" in capsys.readouterr().out
    figures = json.loads(file.read_text())["figures"]
    variants = [*benchmark.VARIANTS, "8 keras steps", "one step"]
    assert [f["variant"] for f in figures] == variants
    casts = [f["casts"] > 0 for f in figures if "casts" in f]
    assert casts == [False, True, True, True]
    for figure in figures:
        assert figure["minimum"] <= figure["median"] <= figure["maximum"]


def test_benchmark_of_master_weights(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load(ROOT / "benchmarks/master_weights.py")
    monkeypatch.setattr(benchmark, "LOST_STEPS", 8)
    file = tmp_path / "figures.json"
    benchmark.main(["--sections", "lost", "--json", str(file)])
    assert "masters remainder" in capsys.readouterr().out
    for figure in json.loads(file.read_text())["figures"]:
        lost = figure["largest_deviation"]
        if figure["variant"] == "keras":
            assert figure["mean_weight"] == 1.0
            assert lost == 1.0 - figure["exact"]
        elif figure["variant"] != "stochastic":
            assert lost == 0.0


@pytest.mark.slow
def test_benchmark_of_autocast(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load(ROOT / "benchmarks/autocast.py")
    for name in ("BATCH", "STEPS", "HEADS", "BLOCKS"):
        monkeypatch.setattr(benchmark, name, 2)
    monkeypatch.setattr(benchmark, "WIDTH", 8)
    file = tmp_path / "figures.json"
    benchmark.main(["--rounds", "2", "--json", str(file)])
    assert "einsum  autocast" in capsys.readouterr().out
    figures = json.loads(file.read_text())["figures"]
    assert [f["variant"] for f in figures] == (
        2 * [*benchmark.VARIANTS] + [*benchmark.TRACED]
    )
    for figure in figures:
        assert figure["minimum"] <= figure["median"] <= figure["maximum"]
