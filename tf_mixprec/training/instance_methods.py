"""Methods that one object has in the place of those of its class."""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

Method = Callable[..., Any]


def set_method(
    instance: Any, name: str, replacement: Callable[[Method], Method]
) -> None:
    """Sets a method of one object, once: a second one replaces the first.

    Args:
        instance: The object.
        name: The name of the method.
        replacement: From the method there is to the one to be.
    """
    original = original_method(instance, name)
    new = replacement(original)
    new._tf_mixprec_original = original  # type: ignore[attr-defined]
    setattr(instance, name, new)


def original_method(instance: Any, name: str) -> Method:
    """Returns the method that `set_method` replaced, or the one there is.

    Args:
        instance: The object.
        name: The name of the method.
    """
    method = getattr(instance, name)
    return getattr(method, "_tf_mixprec_original", method)


def cover_method(
    instance: Any, name: str, replacement: Callable[[Method], Method]
) -> Callable[[], None]:
    """Sets a method of one object for a while, over what is set already.

    Args:
        instance: The object.
        name: The name of the method.
        replacement: From the method there is to the one to be.

    Returns:
        What gives the object back the method it had.
    """
    own = vars(instance).get(name)
    vars(instance)[name] = replacement(getattr(instance, name))

    def uncover() -> None:
        if own is None:
            vars(instance).pop(name, None)
        else:
            vars(instance)[name] = own

    return uncover


@contextlib.contextmanager
def covered(
    instances: Sequence[Any],
    name: str,
    replacement: Callable[[Any, Method], Method],
) -> Iterator[None]:
    """Covers a method of some objects in a block.

    Args:
        instances: The objects.
        name: The name of the method.
        replacement: From an object and the method there is to the one to be.
    """
    with contextlib.ExitStack() as stack:
        for instance in instances:
            replace = functools.partial(replacement, instance)
            stack.callback(cover_method(instance, name, replace))
        yield


def unset_method(instance: Any, name: str) -> None:
    """Gives one object the method of its class back.

    Args:
        instance: The object.
        name: The name of the method.
    """
    method = vars(instance).get(name)
    if hasattr(method, "_tf_mixprec_original"):
        delattr(instance, name)
