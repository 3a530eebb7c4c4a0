"""A checkpoint on disk: written at once, and read whole before it is used.

```text
manifest              JSON: what was saved, and what it needs to go on
GROUP/INDEX/PART      a tensor: a component of a variable
data                  the position of an iterator
```
"""

import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec._typing import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_FORMAT = "tf_mixprec.Checkpoint 1"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_DATA = "data"


class Saved(NamedTuple):
    """A variable in a checkpoint.

    Args:
        path: What it is known by.
        shape: Its shape.
        dtype: Its dtype.
        parts: What its components held.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    parts: list[Tensor]

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it, in JSON types."""
        described = {**self._asdict(), "parts": len(self.parts)}
        return {**described, "shape": list(self.shape)}


def root(
    groups: Mapping[str, Sequence[Any]], about: Mapping[str, Any], data: Any
) -> Any:
    """Returns the `tf.train.Checkpoint` of a run.

    Args:
        groups: By name, what has `parts`, variables or tensors, and a
            `description`.
        about: What else is to be known, in JSON types.
        data: From `checkpoint_data.position_of`, or `None`.
    """
    manifest = {
        **about,
        "format": _FORMAT,
        "groups": {k: [e.description() for e in v] for k, v in groups.items()},
    }
    # By number, since a name in them would be escaped.
    parts: dict[str, Any] = {
        f"group_{index}": [[_variable(p) for p in e.parts] for e in entries]
        for index, entries in enumerate(groups.values())
    }
    if data is not None:
        parts[_DATA] = _variable(data)
    return tf.train.Checkpoint(
        manifest=_variable(json.dumps(manifest)), **parts
    )


class CheckpointFile:
    """What a checkpoint holds, once all of it has been read.

    Args:
        path: As `mp.Checkpoint.save` returned it.

    Attributes:
        path: The path.
        about: What was said with the variables.
        groups: By name, the variables.
        data: As it was given, or `None`.

    Raises:
        ValueError: If there is none, if it is damaged, or not one of ours.
    """

    def __init__(self, path: str):
        self.path = path
        tensors = _tensors(path)
        self.about = _manifest(tensors, path)
        self.groups: dict[str, list[Saved]] = {
            name: [
                _saved(tensors, f"group_{number}/{index}", description)
                for index, description in enumerate(descriptions)
            ]
            for number, (name, descriptions) in enumerate(
                self.about["groups"].items()
            )
        }
        self.data = tensors.get(f"{_DATA}{_VALUE}")


def exists(path: str) -> bool:
    """Returns whether there is a checkpoint, whole or not."""
    return bool(tf.io.gfile.glob(f"{path}.*"))


def has_index(path: str) -> bool:
    """Returns whether there is the file that lists what a checkpoint has."""
    return tf.io.gfile.exists(f"{path}.index")


def _variable(value: Any) -> Any:
    if isinstance(value, tf.Variable):
        return value
    with tf.device("CPU:0"):  # it is there to be written to a file
        return tf.Variable(value)


def _tensors(path: str) -> dict[str, Tensor]:
    """Returns all tensors of a checkpoint; each has a checksum there."""
    if not exists(path):
        raise ValueError(
            "A checkpoint must be given as `save` returned it, because its "
            "files begin like this; `checkpoints` lists those there are. "
            f"Received: {path!r}, of which there is no file"
        )
    try:
        reader = tf.train.load_checkpoint(path)
        dtypes = dict(sorted(reader.get_variable_to_dtype_map().items()))
        with tf.device("CPU:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=list(dtypes),
                shape_and_slices=[""] * len(dtypes),
                dtypes=list(dtypes.values()),
            )
    # Errors of every kind: those of TensorFlow, and Python's like IndexError.
    except Exception as error:
        raise ValueError(
            "A checkpoint must be as it was written, because a part of a run "
            "is no run; restore the one before it, by its path from "
            f"`checkpoints`, or delete all files {os.path.basename(path)}.* of "
            f"this one. No variable was changed. Received: {path!r}, of which "
            f"TensorFlow says: {_first_line(error)}"
        ) from error
    return dict(zip(dtypes, tensors, strict=True))


def _manifest(tensors: Mapping[str, Tensor], path: str) -> dict[str, Any]:
    try:
        manifest = json.loads(tensors[f"manifest{_VALUE}"].numpy())
        found = manifest["format"]
    except (KeyError, TypeError, ValueError):
        found = None
    if found != _FORMAT:
        raise ValueError(
            "A checkpoint must be written by `mp.Checkpoint`, because that "
            "says what every value belongs to; restore another one with "
            "`tf.train.Checkpoint`, as it was saved. No variable was changed. "
            f"Received: {path!r} with the format {found!r}, not {_FORMAT!r}"
        )
    return manifest


def _saved(
    tensors: Mapping[str, Tensor], key: str, description: Mapping[str, Any]
) -> Saved:
    return Saved(
        description["path"],
        tuple(description["shape"]),
        description["dtype"],
        [
            tensors[f"{key}/{part}{_VALUE}"]
            for part in range(description["parts"])
        ],
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
