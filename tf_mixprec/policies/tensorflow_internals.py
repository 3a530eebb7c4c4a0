"""The private part of TensorFlow that there is no public word for.

It is here alone, and `tests/policies/test_tensorflow_internals.py` fails when
TensorFlow moves it.
"""


def onednn_is_on() -> bool | None:
    """Returns whether TensorFlow's CPU kernels are those of oneDNN.

    It is TensorFlow's own answer: built with oneDNN, by default on for this
    processor, and what `TF_ENABLE_ONEDNN_OPTS` was when it was first asked.
    `None` if this TensorFlow has no such function.
    """
    try:
        from tensorflow.python.util import _pywrap_util_port

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None
