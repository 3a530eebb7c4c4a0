"""Keras's own tests of its LossScaleOptimizer, run against ours.

They ship inside the keras wheel (not in every version). Only the import of the
class under test is replaced. Two cases forbid what ours adds and are left out.
"""

import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

SUITE = (
    pathlib.Path(keras.__file__).parent
    / "src/optimizers/loss_scale_optimizer_test.py"
)
THEIRS = (
    "from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer"
)
OURS = "from tf_mixprec import LossScaleOptimizer"
LEFT_OUT = {
    "test_init_dynamic_arg": "ours has `dynamic=False`",
    "test_serialization": "our config has more than four keys",
}

pytestmark = pytest.mark.skipif(
    not SUITE.exists(), reason="this Keras wheel ships no tests"
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras_suite(backend, tmp_path):
    pytest.importorskip(backend)
    source = SUITE.read_text()
    assert source.count(THEIRS) == 1
    source = source.replace(THEIRS, OURS)
    for name in LEFT_OUT:
        assert source.count(f"def {name}(self)") == 1
        source = source.replace(f"def {name}(", f"def left_out_{name}(")
    test_file = tmp_path / "test_keras_suite.py"
    test_file.write_text(source)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", str(test_file)],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # Keras itself skips what a backend cannot do: TensorFlow the stateless
    # half of the parametrized cases, JAX the stateful one.
    summary = re.search(r"(\d+) passed, (\d+) skipped", result.stdout)
    passed, skipped = int(summary[1]), int(summary[2])
    assert passed >= 19, result.stdout
    assert skipped <= 8, result.stdout
