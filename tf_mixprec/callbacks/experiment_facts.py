"""What a run is made on and of, as far as it can be known."""

import os
import platform
from typing import Any

import keras

from tf_mixprec._version import __version__
from tf_mixprec.policies import hardware
from tf_mixprec.training import keras_internals
from tf_mixprec.training.policy_counts import policy_counts

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def machine() -> dict[str, Any]:
    """Returns the processor, its cores, GPUs, and memory in bytes."""
    facts: dict[str, Any] = {
        "cpu": platform.processor() or platform.machine(),
        "cores": _core_count(),
        "memory_bytes": _memory_bytes(),
        "gpus": [],
    }
    if keras.backend.backend() != "tensorflow":
        return facts
    for device in hardware.one_each(hardware.visible_devices("CPU"))[:1]:
        facts["cpu"] = hardware.facts_of(device)["name"]
    for device in hardware.one_each(hardware.visible_devices("GPU")):
        of_gpu = hardware.facts_of(device)
        facts["gpus"].append(
            {name: of_gpu[name] for name in ("name", "compute_capability")}
        )
    return facts


def versions() -> dict[str, str]:
    """Returns the versions of what a run depends on."""
    found = {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "tf_mixprec": __version__,
    }
    if keras.backend.backend() == "tensorflow":
        found["tensorflow"] = tf.__version__
    return found


def of_model(model: Any) -> dict[str, Any]:
    """Returns what a compiled model is, in the types of a config."""
    return {
        "model": {
            "name": model.name,
            "parameters": model.count_params() if model.built else None,
        },
        "policies": policy_counts(model),
        "optimizer": keras.saving.serialize_keras_object(model.optimizer),
        "jit_compile": model.jit_compile,
    }


def learning_rate(model: Any) -> float:
    """Returns the learning rate of the next step. Waits for the device."""
    rate = model.optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(rate))


def examples_so_far(model: Any) -> float | None:
    """Returns the examples in the mean of the loss. Waits for the device.

    On every worker alike, since each has a part of the sum.
    """
    tracker = keras_internals.loss_tracker(model)
    if tracker is None:
        return None
    count = float(keras.ops.convert_to_numpy(tracker.count))
    return count or None


def is_chief(model: Any) -> bool:
    """Returns whether this process is the one to write files."""
    if keras.backend.backend() != "tensorflow":
        return True
    return bool(model.distribute_strategy.extended.should_save_summary)


def _core_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # no Linux
        return None
