"""Whether a device can run an op in some dtypes."""

from __future__ import annotations

import keras

from tf_mixprec.autocast import tensorflow_internals
from tf_mixprec.policies import hardware

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def device_kind() -> str:
    """Returns `"GPU"` where TensorFlow sees one, else `"CPU"`."""
    return "CPU" if hardware.runs_on_cpu() else "GPU"


def device_of(op: tf.Operation, default: str) -> str:
    """Returns the kind of device that an op is placed on."""
    if not op.device:
        return default
    kind = tf.DeviceSpec.from_string(op.device).device_type
    return kind if kind in ("CPU", "GPU") else default


def has_kernel(op_type: str, dtypes: dict[str, tf.DType], device: str) -> bool:
    """Returns whether a device has a kernel of an op for some dtypes.

    An op of which TensorFlow registers no kernel at all for the device is
    taken to run: it may be compiled by XLA, or be placed elsewhere.

    Args:
        op_type: Name of the op.
        dtypes: Dict from type attributes to dtypes.
        device: `"CPU"` or `"GPU"`.
    """
    numbers = {name: each.as_datatype_enum for name, each in dtypes.items()}
    known = tensorflow_internals.kernel_dtypes(op_type, device)
    return not known or any(
        all(
            number in kernel.get(name, (number,))
            for name, number in numbers.items()
        )
        for kernel in known
    )
