"""A batch in parts that follow one another."""

from typing import Any

import keras

from tf_mixprec._typing import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class MicroBatches:
    """The parts of a batch: equal ones, or with one example more or less.

    Args:
        batch: Nested structure of tensors whose first axis is the batch.
        count: Into how many parts.
        jit_compile: Whether XLA compiles what uses them, so that all must have
            the same shape.

    Raises:
        ValueError: Under XLA, if the number of examples is not a multiple.
    """

    def __init__(self, batch: Any, count: int, *, jit_compile: bool):
        self._batch = batch
        self._count = count
        first = first_tensor(batch)
        self._static_size = first.shape[0]
        self._size = (
            tf.shape(first)[0]
            if self._static_size is None
            else self._static_size
        )
        if jit_compile and not self.are_equal:
            raise ValueError(
                "With `jit_compile=True` the number of examples must be a "
                "multiple of `accumulation_steps`, because XLA compiles one "
                "micro-batch for all; drop a smaller last batch, or compile "
                f"without. Received: {self._static_size} examples, "
                f"accumulation_steps={count}"
            )

    @property
    def are_equal(self) -> bool:
        """Whether all parts are known to have the same size."""
        size = self._static_size
        return size is not None and size % self._count == 0

    def part(self, index: Tensor) -> Any:
        """Returns one of the parts, structured as the batch.

        Args:
            index: Scalar int32 tensor, from 0.
        """
        if self._static_size is not None and self.are_equal:
            size = self._static_size // self._count
            return keras.tree.map_structure(
                lambda t: _equal_part(t, index * size, size), self._batch
            )
        start, end = self._bound(index), self._bound(index + 1)
        return keras.tree.map_structure(
            lambda t: t if t is None else t[start:end], self._batch
        )

    def weight(self, index: Tensor) -> Tensor:
        """Returns the size of a part, the average size being 1.

        Args:
            index: Scalar int32 tensor, from 0.

        Returns:
            Scalar float32 tensor.
        """
        if self.are_equal:
            return tf.constant(1.0)
        own = self._bound(index + 1) - self._bound(index)
        average = tf.cast(self._size, tf.float32) / self._count
        # A replica without examples has a loss of 0, and counts.
        return tf.where(
            self._size == 0, 1.0, tf.cast(own, tf.float32) / average
        )

    def _bound(self, index: Tensor) -> Tensor:
        size = tf.cast(self._size, tf.int64)
        bound = tf.cast(index, tf.int64) * size // self._count
        return tf.cast(bound, tf.int32)


def check_enough(batch: Any, count: int) -> None:
    """Raises if a batch has fewer examples than parts.

    Args:
        batch: What one replica gets, in eager code or while it is traced. None
            at all are enough: a replica of an uneven batch may have none.
        count: Into how many parts it will be cut.
    """
    size = first_tensor(batch).shape[0]
    if size is not None and 0 < size < count:
        raise ValueError(
            "A batch must have at least `accumulation_steps` examples on each "
            "replica, because it is cut into that many micro-batches; leave "
            "out a smaller last batch: `dataset.batch(size, "
            "drop_remainder=True)`, or arrays of a multiple of `batch_size`. "
            f"Received: {size} examples, accumulation_steps={count}"
        )


def of_any_size(batch: Any) -> Any:
    """Returns the specification of batches like one, of any size.

    Args:
        batch: Nested structure of tensors, and `None`.
    """

    def spec(tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor) or tensor.shape.rank == 0:
            return tensor
        return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

    return keras.tree.map_structure(spec, batch)


def first_tensor(batch: Any) -> Any:
    """Returns the first tensor of a structure, whose first axis is the batch.

    Raises:
        ValueError: If there is none, or it has no axis.
    """
    for tensor in keras.tree.flatten(batch):
        if tensor is not None:
            if tensor.shape.rank == 0:
                break
            return tensor
    raise ValueError(
        "A batch must be made of arrays or tensors whose first axis is the "
        "batch, because examples are counted there; make an array of a list "
        f"of numbers. Received: {_described(batch)}"
    )


def _described(batch: Any) -> str:
    """Returns the beginning of what a batch is made of."""
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    shapes = [str(tuple(x.shape)) for x in leaves[:3]]
    return f"tensors of the shapes {', '.join(shapes)}" if shapes else "none"


def _equal_part(tensor: Any, start: Tensor, size: int) -> Any:
    if not isinstance(tensor, tf.Tensor):  # `None`, or ragged
        return tensor if tensor is None else tensor[start : start + size]
    # Not by `[start:end]`, whose size XLA does not know.
    begin = tf.stack([start] + [0] * (tensor.shape.rank - 1))
    shape = tf.concat([[size], tf.shape(tensor)[1:]], axis=0)
    part = tf.slice(tensor, begin, shape)
    return tf.ensure_shape(part, [size, *tensor.shape[1:]])
