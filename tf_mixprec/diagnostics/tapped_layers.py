"""Which layers and operations of a model are looked at, and by what path."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.conversion.plan import own_children
from tf_mixprec.layers.keras_internals import sublayers


@dataclasses.dataclass(frozen=True, kw_only=True)
class TappedLayer:
    """A layer, or an operation of `keras.ops` in a graph of layers.

    Args:
        path: The names of the models around it and its own, joined by `/`, as
            rules of precision match it; empty for the model itself.
        layer: It.
        passes_on: Whether it is a graph of layers, and has no code of its own.
    """

    path: str
    layer: Any
    passes_on: bool

    @property
    def compute_dtype(self) -> str:
        """The dtype it computes in; empty for an operation."""
        return getattr(self.layer, "compute_dtype", None) or ""


def tapped_layers(model: Any) -> list[TappedLayer]:
    """Returns what is looked at in a model, each once.

    Layers of Keras's as a whole, and not the cell of an LSTM; layers of users
    and what they are made of. The model itself is the first.

    Args:
        model: The model.
    """
    found: dict[int, TappedLayer] = {}
    for each in _walk(model, ""):
        found.setdefault(id(each.layer), each)
    return list(found.values())


def owners(layers: Iterable[TappedLayer]) -> dict[int, TappedLayer]:
    """Returns, by `id` of a variable, the innermost layer that has it.

    Args:
        layers: From `tapped_layers`, where the outer are before the inner.
    """
    return {
        id(variable): each
        for each in layers
        for variable in getattr(each.layer, "variables", ())
    }


def _walk(layer: Any, path: str) -> Iterator[TappedLayer]:
    passes_on = isinstance(layer, keras.Model) and has_graph(layer)
    if not path or not passes_on:
        yield TappedLayer(path=path, layer=layer, passes_on=passes_on)
    for part in _parts(layer):
        yield from _walk(part, f"{path}/{part.name}".lstrip("/"))


def _parts(layer: Any) -> list[Any]:
    if isinstance(layer, keras.layers.InputLayer):
        return []
    if isinstance(layer, keras.Model):
        # Operations of a functional graph: layers, and calls of `keras.ops`.
        parts = getattr(layer, "operations", None) or sublayers(layer)
        return [p for p in parts if not isinstance(p, keras.layers.InputLayer)]
    return own_children(layer) if isinstance(layer, keras.Layer) else []
