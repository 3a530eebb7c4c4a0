"""The position of an iterator of `tf.data`, as bytes.

TensorFlow saves it as a variant, which it reads without looking at the checksum
first: of a damaged one the process may die. So it is saved to files of its own,
and their bytes, which have a checksum, go to the checkpoint.
"""

import os
import tempfile
from typing import Any

import keras

from tf_mixprec._typing import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_NAME = "data"


def check_data(data: Any) -> None:
    """Raises unless this is what has a position that can be saved."""
    if data is not None and not isinstance(data, tf.data.Iterator):
        raise TypeError(
            "`data` must be `iter(dataset)` of a `tf.data.Dataset`, because "
            "only such an iterator has a position that can be saved; leave it "
            f"out to save none. Received: data={data!r}"
        )


def position_of(data: Any, folder: str) -> Tensor:
    """Returns where an iterator is, as a string tensor.

    Args:
        data: The iterator.
        folder: A place for its files, which is empty before and after. A kill
            may leave it behind, so it should be the same each time.

    Returns:
        A row for each file, with the name and what is in it.

    Raises:
        ValueError: If its position cannot be saved.
    """
    _remove(folder)
    tf.io.gfile.makedirs(folder)
    try:
        _root(data).write(os.path.join(folder, _NAME))
        return tf.stack(
            [
                (name, tf.io.read_file(os.path.join(folder, name)))
                for name in sorted(tf.io.gfile.listdir(folder))
                if name.startswith(f"{_NAME}.")
            ]
        )
    except tf.errors.FailedPreconditionError as error:
        raise ValueError(
            "`data` must be an iterator of a data set without state of its "
            "own, because a position in a Python generator or a random "
            "generator cannot be saved; leave `data` out, or make the data "
            "set of files or tensors. The former checkpoint is as it was. "
            f"Received: data={data!r}, of which TensorFlow says: {error}"
        ) from error
    finally:
        _remove(folder)


def put(data: Any, position: Tensor, path: str) -> None:
    """Puts an iterator where another one was.

    Args:
        data: An iterator of the same data set.
        position: From `position_of`.
        path: Of the checkpoint, for the message.

    Raises:
        ValueError: If it is of another data set.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, content in position.numpy():
            tf.io.write_file(os.path.join(directory, name.decode()), content)
        try:
            status = _root(data).read(os.path.join(directory, _NAME))
            status.expect_partial()  # without a counter of saves
        except tf.errors.OpError as error:
            raise ValueError(
                "`data` must be an iterator of the data set that was saved, "
                "because its state has the buffers of each stage; make the "
                "data set as then, and a new iterator. No variable was "
                f"changed. Received: {path!r}, of which TensorFlow says: "
                f"{error}"
            ) from error


def _remove(folder: str) -> None:
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def _root(data: Any) -> Any:
    return tf.train.Checkpoint(**{_NAME: data})
