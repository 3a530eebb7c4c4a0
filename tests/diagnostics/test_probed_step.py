"""What `test_diagnose.py` and `test_find_nonfinite.py` do not show of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.subject import Subject

MODES = pytest.mark.parametrize(
    "jit_compile", [False, True], ids=["graph", "xla"]
)


def make_model():
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    model.compile(mp.wrap("sgd"), "mse", metrics=["mae"])
    return model


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, 4)), rng.normal(size=(8, 1))
    return tf.constant(x, "float32"), tf.constant(y, "float32"), None


def values_of(model):
    return [v.numpy() for v in [*model.variables, *model.metrics_variables]]


@MODES
@pytest.mark.parametrize("only_outputs", [False, True])
def test_a_step_leaves_everything_as_it_was(only_outputs, jit_compile):
    model = make_model()
    model.train_on_batch(*make_batch()[:2])
    before = values_of(model)
    step = ProbedStep(
        Subject(model),
        jit_compile=jit_compile,
        full=False,
        only_outputs=only_outputs,
    )
    first, second = step(make_batch(1), 4.0), step(make_batch(1), 4.0)
    # The same mask of the dropout, since the state of its generator is.
    assert first == second
    for value, after in zip(before, values_of(model), strict=True):
        np.testing.assert_array_equal(value, after)
    (drawn,) = step.draws
    assert np.any(drawn != 0)


@MODES
def test_outputs_alone_are_those_among_all(jit_compile):
    model = make_model()
    batch = make_batch()
    everything, outputs = (
        ProbedStep(
            Subject(model),
            jit_compile=jit_compile,
            full=False,
            only_outputs=only_outputs,
        )(batch, 2.0)
        for only_outputs in (False, True)
    )
    assert (outputs.loss, outputs.variables) == (everything.loss, ())
    assert len(everything.variables) == len(model.weights)
    for call, other in zip(outputs.calls, everything.calls, strict=True):
        assert (call.path, call.inputs) == (other.path, ())
        for tensor, its_other in zip(call.outputs, other.outputs, strict=True):
            assert tensor.values == its_other.values
            assert tensor.gradient == its_other.gradient
