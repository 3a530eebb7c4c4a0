"""Planted faults are found: the right layer, and the right phase."""

import contextlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from diagnostics import faulty

import tf_mixprec as mp
from tf_mixprec._table import table_text
from tf_mixprec.diagnostics.culprit import BACKWARD
from tf_mixprec.diagnostics.culprit import FORWARD
from tf_mixprec.diagnostics.culprit import INPUT
from tf_mixprec.diagnostics.culprit import LOSS
from tf_mixprec.diagnostics.culprit import SCALE
from tf_mixprec.diagnostics.culprit import WEIGHT
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.search import found_in_step
from tf_mixprec.diagnostics.subject import Subject

# TensorFlow's gradient of the mean itself: the count is a float16, and inf.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


@contextlib.contextmanager
def assigned(variable, value):
    before = np.array(variable)
    variable.assign(np.full(before.shape, value, "float32"))
    yield
    variable.assign(before)


class Probe:
    """Runs one compiled step on changed data, weights and losses."""

    def __init__(self, name, dtype, jit_compile):
        self.jit_compile = jit_compile
        self.case = faulty.make_case(name, dtype)
        losses = self.case.loss
        if isinstance(self.case.y, list):
            losses = [losses, losses]
        self.step = ProbedStep(
            Subject(self.case.model, losses),
            jit_compile=jit_compile,
            full=False,
        )

    def found(self, scale=1.0, **changed):
        x = {**self.case.x, **changed}
        batch = Data(x, self.case.y, None, faulty.ROWS).spread()
        culprit = found_in_step(
            lambda scale: self.step(batch, scale), batch, scale
        )
        return None if culprit is None else (culprit.phase, culprit.layer)


def faults_of(probe, dtype):
    """Yields the name of a fault, what is found, and what should be."""
    case = probe.case
    kernel, bias = case.middle_layer().trainable_variables
    yield "none", probe.found(2.0**8), None
    large = 6e4 if dtype == "float16" else 3e38
    with assigned(kernel, large), assigned(bias, large):
        yield "forward overflow", probe.found(), (FORWARD, case.middle)
    if dtype == "float16":
        found = probe.found(2.0**34)
        right = found is not None and found[0] == SCALE
        yield "scale 2**34", right and found[0], SCALE
        wide = np.ones((faulty.ROWS, 70_000, 1), "float32")
        # XLA sums in float32, and there is nothing to find.
        right = None if probe.jit_compile else (FORWARD, "mean")
        yield "mean of 70,000", probe.found(wide=wide), right
    case.loss.keep.assign(0.0)
    yield "log(0)", probe.found(), (LOSS, "")
    case.loss.keep.assign(1.0)
    x = case.x["x"].copy()
    x[2].flat[1] = np.nan
    yield "nan in the input", probe.found(x=x), (INPUT, "")
    with assigned(kernel, np.nan):
        yield "nan weight", probe.found(), (WEIGHT, case.middle)
    for variable in case.model.non_trainable_variables:
        if "moving" in variable.path:
            with assigned(variable, np.inf):
                yield variable.name, probe.found(), (WEIGHT, "bn")


def check(name, dtype, jit_compile):
    probe = Probe(name, dtype, jit_compile)
    rows = [
        (fault, str(found), str(right))
        for fault, found, right in faults_of(probe, dtype)
    ]
    mode = "xla" if jit_compile else "graph"
    table = table_text([("fault", "found", "right"), *rows])
    sys.stdout.write(f"\n{name}, {dtype}, {mode}\n{table}\n")
    assert [row for row in rows if row[1] != row[2]] == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("lstm", "transformer")
        else name
        for name in faulty.MODELS
    ],
)
def test_faults_are_found(name):
    check(name, "float16", jit_compile=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", faulty.MODELS)
def test_faults_are_found_in_bfloat16(name):
    check(name, "bfloat16", jit_compile=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", faulty.MODELS)
def test_faults_are_found_under_xla(name, dtype):
    check(name, dtype, jit_compile=True)


def test_a_statistic_that_a_skipped_step_has_written():
    x, y = np.ones((4, 2)), np.ones(4)
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Rescaling(1e5, dtype="float16"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    mp.compile(model, "adam", "mse", jit_compile=False)
    first = mp.find_nonfinite(model, x, y)
    assert [e.code for e in first.findings] == ["nonfinite-forward"]
    model.fit(x, y, verbose=0)
    assert int(model.optimizer.skipped_steps) == 1
    second = mp.find_nonfinite(model, x, y)
    codes = [each.code for each in second.findings]
    assert codes == ["nonfinite-forward", "nonfinite-statistic"]
    assert "moving_mean" in second.findings[1].what


class InCode(keras.Model):
    """Overflows between its layers."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, name="first")
        self.last = keras.layers.Dense(1, name="last", dtype="float32")

    def call(self, x):
        e = keras.ops.exp(0.0 * self.first(x) + 12.0)  # beyond float16
        return self.last(e / keras.ops.sum(e, axis=-1, keepdims=True))


def small():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return x, x[:, :1]


def test_code_between_layers_is_named():
    keras.config.set_dtype_policy("mixed_float16")
    model = InCode()
    model(small()[0])
    report = mp.find_nonfinite(model, *small(), loss="mse", loss_scale=1.0)
    culprit = report.culprit
    assert (culprit.phase, culprit.in_code) == (FORWARD, True)
    assert culprit.dtype == "float16"
    (finding,) = report.findings
    assert "Cast to float32 there" in finding.remedy
    assert "the code of the model" in finding.what


def test_a_gradient_beyond_float16_is_no_root():
    keras.config.set_dtype_policy("mixed_float16")
    layers = [keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    report = mp.find_nonfinite(
        model,
        *small(),
        loss=lambda y, predictions: 1e7 * predictions,
        loss_scale=1.0,
    )
    assert report.culprit.phase == BACKWARD
    assert "65504" in report.findings[0].why
    assert "Make the loss smaller" in report.findings[0].remedy


@pytest.mark.parametrize(
    "function", [mp.find_nonfinite, mp.diagnose, mp.compare]
)
def test_an_optimizer_is_not_built(function):
    layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.layers[0].trainable = False
    model.compile(mp.wrap("adam"), "mse", jit_compile=False)
    function(model, *small())
    assert not model.optimizer.built
    model.layers[0].trainable = True
    model.fit(*small(), verbose=0)


@pytest.mark.parametrize(
    ("loss_scale", "error"),
    [(0, ValueError), (-1.0, ValueError), (np.nan, ValueError)]
    + [(np.inf, ValueError), ("a", TypeError), (True, TypeError)],
)
def test_wrong_loss_scales(loss_scale, error):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(error, match="`loss_scale` must be"):
        mp.find_nonfinite(model, *small(), loss="mse", loss_scale=loss_scale)


def test_wrong_data():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    x, y = small()
    with pytest.raises(TypeError, match="must be arrays or tensors"):
        mp.find_nonfinite(model, iter([x]), y, loss="mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    with pytest.raises(ValueError, match="must not be given with a data set"):
        mp.find_nonfinite(model, dataset, y, loss="mse")
