"""The data that a model is examined with, in batches."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.training import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class Data:
    """Inputs, targets and weights.

    Args:
        x: Arrays or tensors whose first axis is the examples, nested as the
            model takes them; or a `tf.data.Dataset` of batches.
        y: The targets; `None` for none, or with a data set.
        sample_weight: The weights of the examples; `None` for none.
        batch_size: Int: how many examples a batch has.

    Raises:
        TypeError: If `batch_size` is no int.
        ValueError: If it is below 1, if there are no examples, or if not all
            arrays have as many.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, batch_size: int):
        _check_batch_size(batch_size)
        self._batch_size = batch_size
        self._dataset = x if isinstance(x, tf.data.Dataset) else None
        if self._dataset is not None and y is not None:
            raise ValueError(
                "`y` must not be given with a data set, because that yields "
                f"the targets. Received: y={type(y).__name__}"
            )
        if self._dataset is None:
            self._arrays = keras.tree.map_structure(
                _as_array, (x, y, sample_weight)
            )
            self._size = _common_size(self._arrays)

    def spread(self) -> Batch:
        """Returns one batch, of examples from all over the data.

        Data that are sorted by class would else give one class. Of a data set
        it is the first batch.
        """
        if self._dataset is not None:
            return next(self.batches())
        size = min(self._size, self._batch_size)
        rows = np.linspace(0, self._size - 1, size).round().astype(int)
        return self._rows(rows)

    def batches(self, seed: int | None = None) -> Iterator[Batch]:
        """Yields all batches.

        Args:
            seed: Of the order of the examples. Defaults to the one that they
                are in. A data set has its own.
        """
        if self._dataset is not None:
            for batch in self._dataset:
                batch = keras_internals.without_optionals(batch)
                yield keras.utils.unpack_x_y_sample_weight(batch)
            return
        rows = np.arange(self._size)
        if seed is not None:
            rows = np.random.default_rng(seed).permutation(self._size)
        for start in range(0, self._size, self._batch_size):
            yield self._rows(rows[start : start + self._batch_size])

    def _rows(self, rows: np.ndarray) -> Batch:
        return keras.tree.map_structure(
            lambda array: (
                None if array is None else tf.convert_to_tensor(array[rows])
            ),
            self._arrays,
        )


def size_of(batch: Batch) -> int:
    """Returns how many examples a batch has.

    Args:
        batch: `(x, y, sample_weight)`.
    """
    return int(keras.tree.flatten(batch[0])[0].shape[0])


def _as_array(value: Any) -> Any:
    """Returns an array as `model.fit` would hand it on."""
    if value is None:
        return None
    array = keras.ops.convert_to_numpy(value) if _is_tensor(value) else value
    if not hasattr(array, "shape"):
        raise TypeError(
            "`x`, `y` and `sample_weight` must be arrays or tensors, or lists "
            "and dicts of these, or `x` a `tf.data.Dataset`, because a batch "
            f"is cut out of them. Received: {type(value).__name__}"
        )
    array = np.asarray(array)
    if array.dtype == np.float64:
        array = array.astype(keras.config.floatx())
    return array


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)


def _common_size(arrays: Any) -> int:
    sizes = {
        len(array) if array.ndim else 0
        for array in keras.tree.flatten(arrays)
        if array is not None
    }
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            "`x`, `y` and `sample_weight` must have the same number of "
            "examples, at least one, because a batch takes the same rows of "
            f"all. Received: {sorted(sizes)} examples"
        )
    return sizes.pop()


def _check_batch_size(batch_size: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        raise TypeError(
            "`batch_size` must be an int, because it counts examples. "
            f"Received: batch_size={batch_size!r}"
        )
    if batch_size < 1:
        raise ValueError(
            "`batch_size` must be at least 1, because it counts examples. "
            f"Received: batch_size={batch_size!r}"
        )
