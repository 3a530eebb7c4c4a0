"""Peak memory of the device, where it can be read."""

import pathlib
from types import TracebackType

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_PROCESS = pathlib.Path("/proc/self")


class PeakMemory:
    """Measures the peak while it is entered; the largest of all peaks.

    On a GPU it is what TensorFlow has allocated on the first one. On a CPU
    under Linux it is the resident memory of the process, Python and TensorFlow
    included.

    Attributes:
        bytes: The peak in bytes, `None` where it cannot be read.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None

    def __enter__(self) -> "PeakMemory":
        if _has_gpu():
            tf.config.experimental.reset_memory_stats("GPU:0")
        else:
            _reset_process_peak()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        peak = _gpu_peak() if _has_gpu() else _process_peak()
        if peak is not None:
            self.bytes = max(peak, self.bytes or 0)


def _has_gpu() -> bool:
    return keras.backend.backend() == "tensorflow" and bool(
        tf.config.list_physical_devices("GPU")
    )


def _gpu_peak() -> int:
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def _reset_process_peak() -> None:
    try:
        (_PROCESS / "clear_refs").write_text("5")  # man 5 proc: resets VmHWM
    except OSError:
        return  # no Linux: nothing can be read either


def _process_peak() -> int | None:
    try:
        status = (_PROCESS / "status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
