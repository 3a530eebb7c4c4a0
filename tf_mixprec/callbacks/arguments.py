"""What arguments of callbacks must be; checked when a callback is made."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any


def checked_file(name: str, value: Any) -> pathlib.Path:
    """Returns the path of a file that is there, or can be.

    Args:
        name: Of the argument.
        value: What a user has given.
    """
    path = _checked_path(name, value)
    if path.is_dir():
        raise ValueError(
            f"`{name}` must be the path of a file, because it is written to; "
            "name one in this directory, such as "
            f"{str(path / 'log.jsonl')!r}. Received: {name}={value!r}"
        )
    return path


def checked_directory(name: str, value: Any) -> pathlib.Path:
    """Returns the path of a directory that is there, or can be made.

    Args:
        name: Of the argument.
        value: What a user has given.
    """
    path = _checked_path(name, value)
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"`{name}` must be a directory, because files are written in it. "
            f"Received: {name}={value!r}, which is a file"
        )
    return path


def _checked_path(name: str, value: Any) -> pathlib.Path:
    if not isinstance(value, (str, pathlib.PurePath)):
        raise TypeError(
            f"`{name}` must be a string or a path, because files are written "
            f"there. Received: {name}={value!r}"
        )
    return pathlib.Path(value)


def checked_patterns(name: str, value: Any) -> list[str] | None:
    """Returns regular expressions as a list, or `None` for all layers.

    Args:
        name: Of the argument.
        value: What a user has given.
    """
    if value is None:
        return None
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not all(
        isinstance(each, str) for each in patterns
    ):
        raise TypeError(
            f"`{name}` must be None, a regular expression or a list of these, "
            "because paths of layers are matched. Received: "
            f"{name}={value!r}"
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{name}` must be a regular expression, because paths of "
                "layers are matched; `re.escape` makes one of a path. "
                f"Received: {name}={value!r}, of which {pattern!r} is none: "
                f"{error}"
            ) from None
    return list(patterns)
