"""Casts of tensors: each once, and of a loop's invariants outside of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tf_mixprec.autocast.trace import is_of
from tf_mixprec.numerics import rounded_outside

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# Constants up to this size are rounded while the graph is built.
_FOLDED_SIZE = 1024


@dataclasses.dataclass(frozen=True)
class CastRecord:
    """A cast in a rewritten function.

    Args:
        tensor: Name of the tensor in the traced function.
        source: Dtype that is cast, such as `"float32"`.
        target: Dtype that it is cast to.
        size: Number of values; `None` where the shape is not known.
        looped: Whether it runs in each turn of a loop.
    """

    tensor: str
    source: str
    target: str
    size: int | None
    looped: bool

    @property
    def bytes(self) -> int | None:
        """Bytes read and written; `None` where the shape is not known."""
        if self.size is None:
            return None
        width = tf.as_dtype(self.source).size + tf.as_dtype(self.target).size
        return self.size * width

    def __str__(self) -> str:
        """One line."""
        size = (
            "size not known" if self.bytes is None else f"{self.bytes:,} bytes"
        )
        text = f"{self.tensor}: {self.source} to {self.target}, {size}"
        return f"{text}, in each turn of a loop" if self.looped else text


class Frame:
    """A graph that is being built, and the casts in it.

    Args:
        kind: `"function"`, `"branch"` or `"loop"`.
        parent: The frame around it.
        written: The ids of the handles of variables that the function writes;
            by default the parent's.
    """

    def __init__(
        self,
        kind: str,
        parent: Frame | None = None,
        written: frozenset[int] = frozenset(),
    ) -> None:
        self.kind = kind
        self.parent = parent
        self.graph = tf.compat.v1.get_default_graph()
        self.written: frozenset[int] = parent.written if parent else written
        self.records: list[CastRecord] = parent.records if parent else []
        # The tensors are kept too, or their ids would be those of others.
        self._done: dict[tuple[int, Any], tuple[Any, tf.Tensor]] = {}

    @property
    def looped(self) -> bool:
        """Whether what is built here runs in each turn of a loop."""
        return self.kind == "loop" or bool(self.parent and self.parent.looped)

    def is_outside(self, tensor: Any) -> bool:
        """Returns whether a tensor is not of this graph."""
        return not is_of(tensor, self.graph)

    def get(self, tensor: Any, dtype: tf.DType, name: str = "") -> Any:
        """Returns a tensor in a dtype.

        What comes into a loop from outside is cast outside. The gradient of
        such a value is summed over the turns in its dtype: of a 16-bit one in
        float32 all the same.

        Args:
            tensor: Tensor of this graph or of one around it.
            dtype: `tf.DType` wanted.
            name: Name for the record.
        """
        if self.kind == "loop" and self.is_outside(tensor):
            if dtype in (tf.float16, tf.bfloat16):
                return self._rounded_outside(tensor, dtype, name)
            return self._from_parent(tensor, dtype, name)
        if tensor.dtype == dtype:
            return tensor
        found = self._known(tensor, dtype)
        if found is None:
            found = self._cast(tensor, dtype, name)
            self._done[id(tensor), dtype] = (tensor, found)
        return found

    def _known(self, tensor: Any, key: Any) -> Any:
        """Returns a cast that is there, here or around a branch."""
        frame: Frame | None = self
        while frame is not None:
            if (id(tensor), key) in frame._done:
                return frame._done[id(tensor), key][1]
            frame = frame.parent if frame.kind == "branch" else None
        return None

    @contextlib.contextmanager
    def _around(self) -> Iterator[Frame]:
        """Builds in the graph around this one, a loop in it, and yields it."""
        assert self.parent is not None  # noqa: S101  a loop is in a graph
        with self.parent.graph.as_default(), tf.control_dependencies(None):
            yield self.parent

    def read(self, handle: Any, dtype: tf.DType) -> tf.Tensor:
        """Returns what a variable holds, which nothing here changes.

        It is read once, and outside of loops.
        """
        if self.kind == "loop" and self.is_outside(handle):
            with self._around() as around:
                return around.read(handle, dtype)
        found = self._known(handle, "read")
        if found is None:
            found = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            self._done[id(handle), "read"] = (handle, found)
        return found

    def know_read(self, handle: Any, value: tf.Tensor) -> None:
        """Makes a tensor what a variable holds.

        Args:
            handle: The handle of the variable.
            value: The tensor.
        """
        self._done[id(handle), "read"] = (handle, value)

    def _from_parent(self, tensor: Any, dtype: tf.DType, name: str) -> Any:
        with self._around() as around:
            return around.get(tensor, dtype, name)

    def _rounded_outside(
        self, tensor: Any, dtype: tf.DType, name: str
    ) -> tf.Tensor:
        """Returns a 16-bit value from outside of a loop."""
        found = self._known(tensor, dtype)
        if found is None:
            bits = self.bits(tensor, dtype, name)
            wide = self._from_parent(tensor, tf.float32, name)
            found = rounded_outside.from_bits(bits, wide, dtype)
            self._done[id(tensor), dtype] = (tensor, found)
        return found

    def bits(self, tensor: Any, dtype: tf.DType, name: str) -> tf.Tensor:
        """Returns the bits of a tensor in a 16-bit dtype."""
        if self.kind == "loop" and self.is_outside(tensor):
            with self._around() as around:
                return around.bits(tensor, dtype, name)
        key = ("bits", dtype)
        found = self._known(tensor, key)
        if found is None:
            rounded = self.get(tensor, dtype, name)
            found = rounded_outside.bits_of(rounded)
            self._done[id(tensor), key] = (tensor, found)
        return found

    def _cast(self, tensor: Any, dtype: tf.DType, name: str) -> tf.Tensor:
        value = _folded(tensor, dtype)
        if value is not None:
            return tf.constant(value, dtype)
        self.records.append(
            CastRecord(
                name or tensor.name,
                tensor.dtype.name,
                dtype.name,
                tensor.shape.num_elements(),
                self.looped,
            )
        )
        return tf.cast(tensor, dtype)


def _folded(tensor: Any, dtype: tf.DType) -> np.ndarray | None:
    """Returns the value of a small constant in a dtype."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type != "Const":
        return None
    size = tensor.shape.num_elements()
    if size is None or size > _FOLDED_SIZE:
        return None
    value = tf.get_static_value(tensor)
    return None if value is None else value.astype(dtype.as_numpy_dtype)
