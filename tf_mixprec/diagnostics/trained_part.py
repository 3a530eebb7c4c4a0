"""Which tensors of a graph depend on what is trained.

Training computes no gradient of other tensors, and neither do we: that of the
first convolution's input would take as long as the rest of its gradient.
"""

from collections.abc import Iterable
from typing import Any

from tf_mixprec._typing import Tensor


class TrainedPart:
    """The part of a graph that depends on some variables.

    Args:
        variables: Keras variables.
    """

    def __init__(self, variables: Iterable[Any]):
        self._handles = {id(each.value.handle) for each in variables}
        self._known: dict[int, bool] = {}

    def has(self, tensor: Tensor) -> bool:
        """Returns whether a tensor depends on a variable.

        Args:
            tensor: A tensor of the graph that is being traced.
        """
        captured = {
            id(inside)
            for outside, inside in tensor.graph.captures
            if id(outside) in self._handles
        }
        waiting = [tensor.op]
        while waiting:
            op = waiting[-1]
            if id(op) in self._known:
                waiting.pop()
                continue
            left = [e.op for e in op.inputs if id(e.op) not in self._known]
            if left:
                waiting += left
                continue
            self._known[id(op)] = any(
                self._known[id(each.op)] or id(each) in captured
                for each in op.inputs
            )
            waiting.pop()
        return self._known[id(tensor.op)]
