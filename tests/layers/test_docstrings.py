"""Every layer is documented, with an example that runs."""

import doctest
import inspect

import keras
import pytest

from tf_mixprec import layers

if keras.backend.backend() != "tensorflow":
    pytest.skip("examples are TensorFlow's", allow_module_level=True)


@pytest.mark.parametrize("name", layers.__all__)
def test_docstring(name):
    layer_class = getattr(layers, name)
    doc = inspect.getdoc(layer_class)
    assert doc.splitlines()[0].endswith(".")
    assert "\nExample:\n" in doc
    twins = {ours: theirs for theirs, ours in layers.TWINS.items()}
    if layer_class in twins:
        theirs = twins[layer_class].__name__
        if theirs == "GroupedQueryAttention":
            theirs = "GroupQueryAttention"  # its public name
        text = " ".join(doc.split())
        assert f"Takes the arguments of `keras.layers.{theirs}`." in text
    (test,) = doctest.DocTestFinder(recurse=False).find(layer_class, name)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test) == doctest.TestResults(0, len(test.examples))
    assert test.examples


def test_all_is_sorted():
    assert layers.__all__ == sorted(layers.__all__)
