"""Which visible devices the argument `device` means."""

import re
from typing import Any

from tf_mixprec.policies import hardware

# "gpu", "CPU:0", "/GPU:0", "/device:GPU:0", the full name that a tensor has,
# and "/physical_device:GPU:0".
_NAME = re.compile(
    r"(?:/job:localhost/replica:0/task:0)?/?(?:(physical_)?device:)?"
    r"(cpu|gpu)(?::(\d+))?",
    re.IGNORECASE,
)


def devices_meant(device: Any) -> list[hardware.Device]:
    """Returns at least one device, all of the same kind.

    Args:
        device: String, `tf.config.PhysicalDevice` or
            `tf.config.LogicalDevice`. A kind without a number means all of
            that kind; `None` means all GPUs, or the CPU where there is none.

    Raises:
        TypeError: If `device` is none of these.
        ValueError: If it names nothing that is visible.
    """
    if device is None:
        device = "GPU" if hardware.visible_devices("GPU") else "CPU"
    is_physical, kind, number = _parse(device)
    visible = hardware.visible_devices(kind)
    if number is not None:
        name = f"{kind}:{number}"
        visible = [x for x in visible if name == _name(x, is_physical)]
    if not visible:
        every = [
            *hardware.visible_devices("CPU"),
            *hardware.visible_devices("GPU"),
        ]
        raise ValueError(
            "`device` must be visible to TensorFlow, because TensorFlow says "
            f"what it is; visible are {', '.join(x.name for x in every)}. "
            f"Received: device={device!r}"
        )
    return hardware.one_each(visible)


def _name(device: hardware.Device, is_physical: bool) -> str:
    if is_physical:
        return device.physical.name.removeprefix("/physical_device:")
    return device.name


def _parse(device: Any) -> tuple[bool, str, int | None]:
    """Returns whether the name is physical, the kind, and the number."""
    name = device if isinstance(device, str) else getattr(device, "name", None)
    if not isinstance(name, str):
        raise TypeError(
            "`device` must be a string, a `tf.config.PhysicalDevice` or a "
            "`tf.config.LogicalDevice`, because a device is known by its "
            "name; leave it out for the visible GPUs, or else the CPU. "
            f"Received: device={device!r}"
        )
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            "`device` must name a CPU or a GPU of this process, because only "
            "of these it is known what they gain from 16 bits; write 'GPU:0', "
            f"'/GPU:0' or 'cpu'. Received: device={device!r}"
        )
    physical, kind, number = match.groups()
    return bool(physical), kind.upper(), None if number is None else int(number)
