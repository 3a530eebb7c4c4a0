"""The private part of TensorFlow that we use is where we look for it."""

import sys

from tf_mixprec.policies import tensorflow_internals


def test_tensorflow_says_whether_onednn_is_on():
    assert tensorflow_internals.onednn_is_on() in (True, False)


def test_a_tensorflow_that_has_moved_it_leaves_it_open(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "tensorflow.python.util._pywrap_util_port", None
    )
    monkeypatch.delattr(
        sys.modules["tensorflow.python.util"], "_pywrap_util_port"
    )
    assert tensorflow_internals.onednn_is_on() is None
