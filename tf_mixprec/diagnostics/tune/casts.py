"""How often the dtype changes on the way through a model."""

from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.numerics.casting import has_16_bits

Dtypes = tuple[str, str]  # what a layer computes in, and what it returns


class LayerGraph:
    """Which layer or operation gets what from which, as one call showed.

    Where code of the user's computes in between, it is not known.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[Any, tuple[int, ...]]] = []
        self._makers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no `id` is used twice

    def add(self, layer: Any, given: Any, outputs: Any) -> None:
        """Adds a call.

        Args:
            layer: The layer, or an operation.
            given: What it was given, nested.
            outputs: What it has returned, nested.
        """
        makers = {
            self._makers[id(each)]
            for each in keras.tree.flatten(given)
            if id(each) in self._makers
        }
        for each in keras.tree.flatten(outputs):
            self._kept.append(each)
            self._makers[id(each)] = len(self._nodes)
        self._nodes.append((layer, tuple(sorted(makers))))

    def end(self) -> None:
        """Lets the tensors go: no call is added any more."""
        self._makers, self._kept = {}, []

    def casts(self, dtypes_of: Callable[[Any], Dtypes | None]) -> int:
        """Returns how many results are cast before they are used.

        Args:
            dtypes_of: The dtypes of a layer; `None` for one that takes what
                comes, as operations do: they return the widest.
        """
        returned: list[str] = []
        count = 0
        for layer, makers in self._nodes:
            given = [returned[maker] for maker in makers]
            dtypes = dtypes_of(layer) or (_widest(given),) * 2
            count += sum(each not in ("", dtypes[0]) for each in given)
            returned.append(dtypes[1])
        return count


def _widest(dtypes: list[str]) -> str:
    return min(dtypes, key=has_16_bits, default="")
