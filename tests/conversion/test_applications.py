"""Architectures of `keras.applications` convert and agree with float32."""

import inspect
import os

import keras
import numpy as np
import pytest

import tf_mixprec as mp

ARCHITECTURES = sorted(
    name
    for name, value in vars(keras.applications).items()
    if inspect.isfunction(value)
)
# Some families, or the tests would take a quarter of an hour; set
# TF_MIXPREC_ALL_APPLICATIONS=1 for every one that builds in 20 seconds.
FAMILIES = (
    "ConvNeXtTiny",
    "DenseNet121",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50V2",
    "Xception",
)
QUICK = ("MobileNetV2",)
LARGE = ("ConvNeXtXLarge", "EfficientNetV2L", "NASNetLarge")
# Of probabilities; up to a hundred layers deep, with logits of 10 and more.
TOLERANCE = {"mixed_float16": 5e-3, "mixed_bfloat16": 5e-2}
# Of untrained weights: its activations grow over 57 blocks.
LOOSE = ("EfficientNetV2M",)


def architectures():
    """Yields the names to test, all but the quick ones marked slow."""
    names = {*FAMILIES, *QUICK}
    if os.environ.get("TF_MIXPREC_ALL_APPLICATIONS"):
        names = set(ARCHITECTURES) - set(LARGE)
    for name in sorted(names):
        marks = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param(name, marks=marks)


def make(name):
    """Returns a small classifier and images for it."""
    keras.utils.set_random_seed(0)
    size = 75 if "Inception" in name or "Xception" in name else 64
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=5
    )
    rng = np.random.default_rng(0)
    return model, rng.uniform(0, 255, (2, size, size, 3)).astype("float32")


@pytest.mark.parametrize("name", list(architectures()))
def test_converts_and_agrees(name):
    model, images = make(name)
    expected = model(images).numpy()
    for policy, tolerance in TOLERANCE.items():
        mixed, report = mp.convert(model, policy, return_report=True)
        assert not report.in_place
        got = mixed(images).numpy()
        assert got.dtype == np.float32
        tolerance = 5e-2 if name in LOOSE else tolerance
        np.testing.assert_allclose(got, expected, atol=tolerance)
        dtype = policy.removeprefix("mixed_")
        computes = [layer.compute_dtype for layer in mixed.layers]
        assert computes.count(dtype) > len(computes) / 4
    back = mp.convert(mixed, "float32")
    np.testing.assert_array_equal(back(images), expected)


def test_the_names_are_those_of_keras():
    assert {*FAMILIES, *QUICK, *LARGE} < set(ARCHITECTURES)
