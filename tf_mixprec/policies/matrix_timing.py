"""How long a matrix product takes on a device, in each precision."""

import statistics
import time
from typing import Any
from typing import NamedTuple

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

DTYPES = ("float32", "bfloat16", "float16")
SECONDS = 1.5  # of measuring; with starting and warming up about two
LEAST_ROUNDS = 3  # where one product takes longer than that
# A float32 product must take longer than starting it: 10 to 100 microseconds.
LEAST_MILLISECONDS = 2.0
SIZES = (512, 1024, 2048, 4096, 8192)  # 256 MiB a float32 matrix at the most


class MatrixTimes(NamedTuple):
    """Median times of the product of two square matrices.

    Args:
        size: Int, rows and columns.
        milliseconds: One time for each of `DTYPES`.
    """

    size: int
    milliseconds: dict[str, float]


def measure(device: str, seconds: float = SECONDS) -> MatrixTimes:
    """Measures the product in each precision, in turn, on one device.

    In turn, so that whatever else the machine does meanwhile slows all.

    Args:
        device: Name of a logical device, such as `"GPU:0"`.
        seconds: Float, how long to go on.
    """
    with tf.init_scope(), tf.device(device):
        matrix = _matrix()
        matrices = {dtype: tf.cast(matrix, dtype) for dtype in DTYPES}
        for each in matrices.values():
            _milliseconds(each)  # warm-up
        times: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["float32"]) < LEAST_ROUNDS:
            for dtype, each in matrices.items():
                times[dtype].append(_milliseconds(each))
    return MatrixTimes(
        int(matrix.shape[0]),
        {dtype: statistics.median(each) for dtype, each in times.items()},
    )


def _matrix() -> Any:
    """Returns a float32 matrix whose product takes long enough to measure."""
    for size in SIZES:
        # Stateless, so that the random numbers of the program stay the same.
        matrix = tf.random.stateless_normal((size, size), seed=(0, 0))
        _milliseconds(matrix)  # warm-up
        if min(_milliseconds(matrix) for _ in range(3)) >= LEAST_MILLISECONDS:
            break
    return matrix


def _milliseconds(matrix: Any) -> float:
    start = time.perf_counter()
    tf.linalg.matmul(matrix, matrix)
    tf.test.experimental.sync_devices()  # a GPU goes on after the call
    return (time.perf_counter() - start) * 1000.0
