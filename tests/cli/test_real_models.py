"""Each subcommand on trained models; see tests/conversion/test_real_models.py.

Targets are the model's own predictions, with noise, so that there is something
to learn.
"""

import json
import zipfile

import numpy as np
import pytest
from conversion.test_real_models import faces
from conversion.test_real_models import folder
from conversion.test_real_models import load

from tf_mixprec.cli.main import main

COMMANDS = {
    "audit": ["--policy", "mixed_float16"],
    "diagnose": ["--policy", "mixed_bfloat16"],
    "find-nonfinite": [],
    "compare": ["--policy", "mixed_bfloat16"],
    "bench": ["--policy", "mixed_bfloat16", "--seconds", "5"],
    "tune": ["--policy", "mixed_bfloat16", "--max-trials", "3"],
}


def save(tmp_path, model, x):
    """Writes model and data, and returns the paths."""
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    y = model.predict(x, verbose=0)
    y = y + np.random.default_rng(1).normal(size=y.shape, scale=0.1)
    arrays = {"y": y.astype("float32")}
    if isinstance(x, list):
        arrays.update({f"x/{index}": each for index, each in enumerate(x)})
    else:
        arrays["x"] = x
    np.savez(tmp_path / "data.npz", **arrays)
    return str(tmp_path / "model.keras"), str(tmp_path / "data.npz")


def run(command, paths, tmp_path):
    """Runs a subcommand, and returns the fields of its report."""
    model, data = paths
    arguments = [model] if command == "audit" else [model, data]
    report = tmp_path / "report.json"
    page = tmp_path / "report.html"
    options = [*COMMANDS[command], "--save", str(report), "--save", str(page)]
    assert main([command, *arguments, *options]) == 0
    assert page.stat().st_size > 2000
    return json.loads(report.read_text())


def test_the_faces_of_fer(tmp_path):
    """A convolutional network.

    Not trained: on some CPUs with AVX512 the gradient of a 1x1 convolution with
    strides ends the process, in TensorFlow 2.21 without XLA.
    """
    model = load(folder("fer") / "data/emotion_model.hdf5")
    fields = run("audit", save(tmp_path, model, faces()[:32]), tmp_path)
    assert not [e for e in fields["findings"] if e["level"] == "error"]
    assert len(fields["layers"]) > 40


@pytest.mark.parametrize("command", COMMANDS)
def test_the_retention_times_of_deeplc(command, tmp_path):
    """Four inputs."""
    path = sorted((folder("deeplc") / "mods").glob("*.keras"))[-1]
    model = load(path)
    rng = np.random.default_rng(0)
    x = [
        rng.uniform(0, 1, (32, *t.shape[1:])).astype("float32")
        for t in model.inputs
    ]
    assert run(command, save(tmp_path, model, x), tmp_path)["verdict"]


@pytest.mark.parametrize("command", ["audit", "diagnose", "find-nonfinite"])
def test_the_sleep_stages_of_sleepecg(command, tmp_path):
    """Recurrent layers on a masked input of any length."""
    archive = folder("sleepecg") / "classifiers" / "ws-gru-mesa.zip"
    with zipfile.ZipFile(archive) as file:
        file.extract("classifier.keras", tmp_path)
    model = load(tmp_path / "classifier.keras")
    x = np.random.default_rng(0).normal(size=(8, 12, 36)).astype("float32")
    assert run(command, save(tmp_path, model, x), tmp_path)["verdict"]
