"""What conversion needs of Keras that has no public name."""

from typing import Any


def operation_of(tensor: Any) -> Any:
    """Returns the layer or operation that made a symbolic tensor."""
    return tensor._keras_history.operation


def inputs_of(tensor: Any) -> list[Any]:
    """Returns the symbolic tensors that a symbolic tensor was made from."""
    operation, node_index, _ = tensor._keras_history
    return list(operation._inbound_nodes[node_index].input_tensors)


def forget_traces(model: Any) -> None:
    """Makes a compiled model trace its steps again."""
    model.train_function = None
    model.test_function = None
    model.predict_function = None
