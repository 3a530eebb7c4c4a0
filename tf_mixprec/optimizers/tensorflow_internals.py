"""The private part of TensorFlow that there is no public word for.

It is here alone, and `tests/optimizers/test_tensorflow_internals.py` fails when
TensorFlow moves it.
"""

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def is_compiled() -> bool:
    """Returns whether what is being traced is compiled by XLA as a whole."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
