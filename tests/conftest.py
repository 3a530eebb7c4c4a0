"""Every test starts from the same global state and leaves none behind."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest
import tensorflow as tf

# Before TensorFlow starts: four devices to be replicas on, of one processor.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)


@pytest.fixture(autouse=True)
def _global_state():
    """Seeds, and puts back the global dtype policy and float type."""
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy(policy)
    keras.config.set_floatx(floatx)
    keras.utils.clear_session(free_memory=False)


def pytest_collection_modifyitems(items):
    """Skips what needs a GPU where TensorFlow sees none."""
    if tf.config.list_physical_devices("GPU"):
        return
    skip = pytest.mark.skip(reason="TensorFlow sees no GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
