"""Machines that this one is not, for what reads the hardware."""

import types

import tensorflow as tf

from tf_mixprec.policies import hardware
from tf_mixprec.policies import matrix_timing
from tf_mixprec.policies import tensorflow_internals

V100 = {"device_name": "Tesla V100", "compute_capability": (7, 0)}
A100 = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
H200 = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
RADEON = {"device_name": "AMD Radeon"}
XEON = "model name\t: A Xeon\nflags\t\t: fpu avx512_bf16 amx_bf16\n"
OLD_PC = "model name\t: A Core 2\nflags\t\t: fpu sse2\n"
NEOVERSE = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU part\t: 0xd40\n"


def pretend(monkeypatch, tmp_path, gpus=(), cpu=XEON, onednn=True, parts=1):
    """Puts a machine in the place of the real one.

    Args:
        monkeypatch: The fixture of pytest.
        tmp_path: The fixture of pytest.
        gpus: What TensorFlow says of each GPU.
        cpu: The text of `/proc/cpuinfo`, `None` for no such file.
        onednn: Whether TensorFlow says that oneDNN is on.
        parts: How many logical devices each GPU is split into.
    """
    physical = {
        tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU"): each
        for number, each in enumerate(gpus)
    }
    physical[tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU")] = {}

    def visible(kind):
        return [each for each in physical if each.device_type == kind]

    def split(device):
        return ["part"] * parts if device.device_type == "GPU" else None

    config = types.SimpleNamespace(
        get_visible_devices=visible,
        get_logical_device_configuration=split,
        experimental=types.SimpleNamespace(
            get_device_details=physical.__getitem__
        ),
    )
    monkeypatch.setattr(hardware, "tf", types.SimpleNamespace(config=config))
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    if cpu is not None:
        hardware.CPU_INFO.write_text(cpu)
    monkeypatch.setattr(tensorflow_internals, "onednn_is_on", lambda: onednn)


def pretend_times(monkeypatch, float32, bfloat16, float16):
    """Puts times, in milliseconds, in the place of measuring.

    Returns:
        A list, to which the name of each device that is measured is added.
    """
    measured = []
    times = {"float32": float32, "bfloat16": bfloat16, "float16": float16}

    def measure(device):
        measured.append(device)
        return matrix_timing.MatrixTimes(1024, times)

    monkeypatch.setattr(matrix_timing, "measure", measure)
    return measured
