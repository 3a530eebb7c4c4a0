"""Which type attribute of an op says the dtype of each input and output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class TypeKey(NamedTuple):
    """A type attribute; one place in it where it is a list of types.

    Args:
        name: Name of the attribute, such as `"T"`.
        place: Where in the list; `None` where the attribute is one type.
    """

    name: str
    place: int | None = None


class Signature(NamedTuple):
    """The type attributes behind the inputs and outputs of an op.

    Args:
        inputs: A `TypeKey` for each input; `None` where the op fixes it.
        outputs: The same for the outputs.
    """

    inputs: tuple[TypeKey | None, ...]
    outputs: tuple[TypeKey | None, ...]


def signature_of(op: tf.Operation) -> Signature:
    """Returns the type attributes behind the tensors of an op."""
    definition = op.op_def
    attributes = op.node_def.attr
    return Signature(
        tuple(_keys(definition.input_arg, attributes)),
        tuple(_keys(definition.output_arg, attributes)),
    )


def _keys(arguments: Iterable[Any], attributes: Any) -> Iterable[Any]:
    for argument in arguments:
        if argument.type_list_attr:
            name = argument.type_list_attr
            for index in range(len(attributes[name].list.type)):
                yield TypeKey(name, index)
            continue
        key = TypeKey(argument.type_attr) if argument.type_attr else None
        count = 1
        if argument.number_attr:
            count = attributes[argument.number_attr].i
        for _ in range(count):
            yield key
