"""Vectors of statistics on their way to the host, all at once."""

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics
from tf_mixprec.diagnostics.tensor_statistics import decoded

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Collected:
    """Vectors that a trace has made: brief ones, and full ones."""

    def __init__(self) -> None:
        self._vectors: list[Tensor] = []
        self._lengths: list[int] = []

    def add(self, vector: Tensor | None) -> int | None:
        """Adds a vector, and returns its number; `None` for none."""
        if vector is None:
            return None
        self._vectors.append(vector)
        self._lengths.append(int(vector.shape[0]))
        return len(self._lengths) - 1

    def packed(self) -> Tensor:
        """Returns one tensor of all, and lets them go."""
        vectors, self._vectors = self._vectors, []
        return tf.concat([tf.zeros([0], tf.float64), *vectors], axis=0)

    def unpacked(self, packed: np.ndarray) -> list[TensorStatistics]:
        """Returns the statistics by their numbers.

        Args:
            packed: From `packed`, on the host.
        """
        ends = np.cumsum(self._lengths)
        return [
            decoded(packed[end - length : end])
            for end, length in zip(ends, self._lengths, strict=True)
        ]
