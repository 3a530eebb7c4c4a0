"""What TensorFlow and the operating system say of the visible devices.

Nothing here starts a device: no context is created, no memory allocated.
"""

import pathlib
import platform
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec.policies import tensorflow_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

CPU_INFO = pathlib.Path("/proc/cpuinfo")  # Linux only
# As Linux spells them: three of x86, then the one of ARM.
SIXTEEN_BIT_FEATURES = ("avx512_bf16", "amx_bf16", "amx_fp16", "bf16")


class Device(NamedTuple):
    """A device as `tf.device` names it, and the hardware behind it.

    Args:
        name: String such as `"GPU:0"`, counting the visible logical devices.
        physical: The `tf.config.PhysicalDevice`.
    """

    name: str
    physical: Any

    @property
    def kind(self) -> str:
        """`"CPU"` or `"GPU"`."""
        return self.name.partition(":")[0]


def visible_devices(kind: str) -> list[Device]:
    """Returns the visible devices of a kind, in TensorFlow's order.

    Hardware that is split into logical devices is there once for each. They
    are counted here, because `tf.config.list_logical_devices` starts them.

    Args:
        kind: `"CPU"` or `"GPU"`.
    """
    devices: list[Device] = []
    for physical in tf.config.get_visible_devices(kind):
        parts = tf.config.get_logical_device_configuration(physical)
        for _ in parts or [None]:
            devices.append(Device(f"{kind}:{len(devices)}", physical))
    return devices


def runs_on_cpu() -> bool:
    """Returns whether TensorFlow has nothing but the CPU to run on.

    Keras asks for GPUs that are there, and not for those that are visible.
    """
    return keras.backend.backend() == "tensorflow" and not visible_devices(
        "GPU"
    )


def one_each(devices: list[Device]) -> list[Device]:
    """Returns the first of those that the same hardware is split into."""
    first: dict[Any, Device] = {}
    for device in devices:
        first.setdefault(device.physical, device)
    return list(first.values())


def facts_of(device: Device) -> dict[str, Any]:
    """Returns what is known of a device, in JSON types; `None` if unknown."""
    facts = _gpu_facts(device) if device.kind == "GPU" else _cpu_facts()
    return {"device": device.name, "kind": device.kind, **facts}


def _gpu_facts(device: Device) -> dict[str, Any]:
    details = tf.config.experimental.get_device_details(device.physical)
    # Only NVIDIA's GPUs have one.
    capability = details.get("compute_capability")
    return {
        "name": details.get("device_name", device.name),
        "compute_capability": capability and list(capability),
        # Tensor cores: float16 since Volta, float8 since Ada and Hopper.
        "float16_is_fast": capability and tuple(capability) >= (7, 0),
        "float8_available": capability and tuple(capability) >= (8, 9),
    }


def _cpu_facts() -> dict[str, Any]:
    fields = _cpu_info()
    listed = fields.get("flags") or fields.get("Features")  # x86, ARM
    return {
        "name": fields.get("model name") or platform.machine(),
        "cpu_features": listed
        and [name for name in SIXTEEN_BIT_FEATURES if name in listed.split()],
        "onednn": tensorflow_internals.onednn_is_on(),
        "float16_is_fast": False,
        "float8_available": False,
    }


def _cpu_info() -> dict[str, str]:
    """Returns the fields of the first processor; none where there is no file.

    The others are of the same kind, or TensorFlow could not use their
    instructions.
    """
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields
