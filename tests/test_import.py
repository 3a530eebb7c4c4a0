"""Importing the package prints nothing, allocates nothing, changes nothing."""

import os
import subprocess
import sys

import pytest


def run(code, backend="tensorflow"):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


CHANGES_NOTHING = """
import keras
import os
import sys
import warnings

def state():
    return (
        keras.config.dtype_policy().get_config(),
        keras.config.floatx(),
        keras.config.epsilon(),
        warnings.filters[:],
        dict(os.environ),
        sys.stdout, sys.stderr,
    )

before = state()
print("before", flush=True)
print("before", file=sys.stderr, flush=True)
import tf_mixprec
print("after", flush=True)
print("after", file=sys.stderr, flush=True)
assert state() == before
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_import_is_quiet_and_changes_no_setting(backend):
    pytest.importorskip(backend)
    result = run(CHANGES_NOTHING, backend)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "before\nafter\n"
    assert "before\nafter\n" in result.stderr


def test_import_does_not_start_the_device():
    code = """
import tf_mixprec
import tensorflow as tf
# Raises a RuntimeError once the devices are initialized.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_import_does_not_need_tensorflow_with_another_backend():
    pytest.importorskip("jax")
    code = """
import sys
import tf_mixprec
assert "tensorflow" not in sys.modules
"""
    result = run(code, "jax")
    assert result.returncode == 0, result.stderr
