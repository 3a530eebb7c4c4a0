"""The tests that need no TensorFlow, on the JAX backend."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
VALUES = "test_values.py::test_values_are_those_of_float32_rounded_once"
QUICK = [
    "test_cast_to.py",
    f"{VALUES}[Attention-float16]",
    f"{VALUES}[LayerNormalization-bfloat16]",
    f"{VALUES}[UnitNormalization-float16]",
]
SLOW = [
    "test_attention.py",
    "test_embedding.py",
    "test_masks.py",
    "test_normalization.py",
    "test_precision.py",
    "test_regularization.py",
    "test_saving.py",
    "test_twins.py",
    "test_values.py",
]


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="this is the run on JAX"
)
@pytest.mark.parametrize(
    "files",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(SLOW, id="slow", marks=pytest.mark.slow),
    ],
)
def test_on_jax(files):
    pytest.importorskip("jax")
    paths = [str(HERE / name) for name in files]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *paths,
        ],
        cwd=ROOT,
        # Some tests are about float64.
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert " passed" in result.stdout
