"""Diagnoses against NumPy, against training, and of planted weaknesses."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.diagnostics import diagnosis as roles
from tf_mixprec.diagnostics import judgement
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.gradient_step import GradientStep
from tf_mixprec.diagnostics.gradient_step import lost_fraction
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.updates import UpdateOfVariable
from tf_mixprec.diagnostics.updates import rounds_stochastically

BATCH = 32


def data(size=BATCH, features=8):
    x = np.random.default_rng(0).normal(size=(size, features))
    return x.astype("float32"), np.tanh(x.sum(axis=1, keepdims=True))


def small_loss(y, predictions):
    """A loss with gradients that float16 loses without a scale."""
    return 1e-5 * keras.ops.mean((y - predictions) ** 2, axis=-1)


def make(*layers, policy="mixed_float16", head="float32", features=8):
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((features,)),
            *[layer() for layer in layers],
            keras.layers.Dense(1, name="head", dtype=head),
        ],
        name="model",
    )


def dense(name, **options):
    return lambda: keras.layers.Dense(16, "tanh", name=name, **options)


def rescaling(name, scale, **options):
    return lambda: keras.layers.Rescaling(scale, name=name, **options)


def codes(report, *levels):
    return {
        (each.code, each.layer)
        for each in report.findings
        if each.level in levels
    }


def test_a_sound_model_has_no_finding_but_the_window():
    model = make(dense("hidden"))
    mp.compile(model, "adam", "mse")
    report = mp.diagnose(model, *data())
    assert codes(report, "error", "warning") == set()
    assert codes(report, "info") == {("loss-scale-window", "")}
    assert report.window.holds(report.loss_scale)
    assert report.verdict.startswith("The numbers are in order")
    assert report.policy == {"mixed_float16": 1, "float32": 1}


@pytest.mark.parametrize(
    "jit_compile",
    [
        pytest.param(False, id="graph"),
        pytest.param(True, id="xla", marks=pytest.mark.slow),
    ],
)
def test_statistics_are_those_of_numpy(jit_compile):
    model = make(dense("hidden"))
    x, y = data()
    report = mp.diagnose(
        model, x, y, loss="mse", loss_scale=2.0**10, jit_compile=jit_compile
    )
    by_name = {(each.role, each.name): each for each in report.tensors}
    hidden, head = model.get_layer("hidden"), model.get_layer("head")
    kernel, bias = (np.float64(w) for w in hidden.get_weights())
    outputs = np.tanh(x @ kernel + bias)
    predictions = outputs @ np.float64(head.get_weights()[0])
    gradient = 2 * (predictions - y) / BATCH * 2.0**10
    expected = {
        (roles.OUTPUT, "hidden"): outputs,
        (roles.OUTPUT, "head"): predictions,
        (roles.WEIGHT, "hidden/kernel"): kernel,
        (roles.GRADIENT, "head"): gradient,
        (roles.WEIGHT_GRADIENT, "head/kernel"): outputs.T @ gradient,
    }
    for key, values in expected.items():
        found = by_name[key].values
        magnitudes = np.abs(values)
        assert found.size == values.size
        assert found.amax == pytest.approx(magnitudes.max(), rel=1e-5)
        rms = np.sqrt((values**2).mean())
        assert found.rms == pytest.approx(rms, rel=1e-5)
        noise = values - values.astype("float16").astype("float64")
        sqnr = 10 * np.log10((values**2).sum() / (noise**2).sum())
        assert found.sqnr("float16") == pytest.approx(sqnr, abs=0.5)
        assert found.headroom("float16") == pytest.approx(
            np.log2(65504 / magnitudes.max()), abs=1e-4
        )


@pytest.mark.slow
def test_exponents_of_gradients_shift_with_the_scale():
    model = make(dense("hidden"))
    one, other = (
        mp.diagnose(model, *data(), loss="mse", loss_scale=scale)
        for scale in (2.0**4, 2.0**9)
    )
    for role in (roles.GRADIENT, roles.WEIGHT_GRADIENT):
        for a, b in zip(one.of_role(role), other.of_role(role), strict=True):
            shifted = {k + 5: v for k, v in a.values.exponents.items()}
            assert b.values.exponents == shifted


def train(model, scale, steps, x, y):
    """Returns how many of some steps with a fixed scale are skipped."""
    optimizer = mp.wrap(
        keras.optimizers.SGD(1e-6),
        dynamic=False,
        initial_scale=scale,
    )
    step = mp.TrainStep(model, optimizer, small_loss)
    for _ in range(steps):
        step(x, y)
    return int(step.optimizer.skipped_steps)


def test_the_window_is_that_of_training():
    x, y = data()
    window = mp.diagnose(make(dense("hidden")), x, y, loss=small_loss).window
    assert not window.is_empty
    model = make(dense("hidden"))
    assert train(model, window.highest, 200, x, y) == 0
    assert train(model, 2 * window.highest, 3, x, y) == 3
    # What is lost, without the code under test: float16 against float32.
    assert window.lowest > 1
    assert zeros(window.lowest, x, y) <= 1e-3
    assert zeros(window.lowest / 2, x, y) > 1e-3


def zeros(scale, x, y):
    """Returns the share of gradients that are zero only in float16."""
    gradients = []
    for policy in ("float32", "mixed_float16"):
        keras.utils.set_random_seed(0)
        model = make(dense("hidden"), policy=policy)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(small_loss(y, model(x, training=True)))
            loss = loss * (1.0 if policy == "float32" else scale)
        found = tape.gradient(loss, model.trainable_variables)
        gradients.append(np.concatenate([np.ravel(g) for g in found]))
    wide, narrow = gradients
    return ((wide != 0) & (narrow == 0)).sum() / (wide != 0).sum()


@pytest.mark.slow
def test_the_ends_of_the_window_have_names():
    x, y = data()
    window = mp.diagnose(make(dense("hidden")), x, y, loss=small_loss).window
    assert window.lowest_limit.startswith("model/hidden/")
    assert window.highest_limit == "hidden"


class TwoSizes(keras.layers.Layer):
    """Passes on, with gradients of very different sizes in two halves."""

    def call(self, x):
        @tf.custom_gradient
        def sizes(x):
            factors = tf.cast(tf.repeat([1e6, 1e-6], 8), tf.float32)
            return tf.identity(x), lambda dy: tf.cast(
                tf.cast(dy, tf.float32) * factors, dy.dtype
            )

        return sizes(x)


def test_no_loss_scale_works():
    model = make(dense("hidden"), lambda: TwoSizes(name="sizes"))
    report = mp.diagnose(model, *data(), loss="mse", loss_scale=1.0)
    assert report.window.is_empty
    assert ("no-scale-works", "") in codes(report, "error")
    assert report.window.lowest_limit.endswith("hidden/kernel")
    assert report.window.highest_limit in ("hidden", "sizes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "code"),
    [
        pytest.param(rescaling("weak", 2e4), "headroom", id="near the end"),
        pytest.param(rescaling("weak", 1e-8), "underflow", id="too small"),
        pytest.param(
            rescaling("weak", 1e-7, offset=1e-6), "noise", id="few digits"
        ),
    ],
)
def test_weak_outputs_are_found(layer, code):
    model = make(layer)
    report = mp.diagnose(model, *data(), loss="mse", loss_scale=1.0)
    assert (code, "weak") in codes(report, "error", "warning")
    (finding,) = [e for e in report.findings if e.code == code]
    assert "path='weak'" in finding.remedy
    rules = mp.PrecisionRules(
        [mp.rules.Rule(policy="float32", path="weak"), *mp.rules.SAFE.rules],
        "mixed_float16",
    )
    mended = mp.diagnose(
        model, *data(), loss="mse", loss_scale=1.0, policy=rules
    )
    assert (code, "weak") not in codes(mended, "error", "warning")


def test_lost_gradients_are_found():
    model = make(dense("hidden"))
    report = mp.diagnose(model, *data(), loss=small_loss, loss_scale=1.0)
    assert ("lost-gradients", "hidden") in codes(report, "warning")
    assert ("loss-scale-too-low", "") in codes(report, "warning")
    (lost,) = [
        each.lost
        for each in report.of_role(roles.WEIGHT_GRADIENT)
        if each.name == "hidden/kernel"
    ]
    subject = Subject(model, small_loss)
    batch = Data(*data(), None, BATCH).spread()
    wide = GradientStep(subject, "float32", jit_compile=False)
    narrow = GradientStep(subject, None, jit_compile=False)
    kernel = narrow.matches(batch, 1.0, wide.gradients(batch, 1.0))[:1]
    assert lost == lost_fraction(kernel) > 0.01


def test_dead_updates_are_found():
    def diagnosed(**options):
        keras.utils.set_random_seed(0)
        model = make(dense("hidden"), policy="bfloat16")
        optimizer = mp.wrap(keras.optimizers.SGD(1e-4), **options)
        mp.compile(model, optimizer, "mse")
        return mp.diagnose(model, *data())

    bare = diagnosed(master_weights=False)
    assert ("dead-updates", "") in codes(bare, "warning")
    assert {each.dtype for each in bare.updates} == {"bfloat16", "float32"}
    with_masters = diagnosed()
    assert ("dead-updates", "") not in codes(with_masters, "warning")
    assert {each.dtype for each in with_masters.updates} == {"float32"}
    kernel = with_masters.updates[0]
    assert kernel.dead_bfloat16 > 0.5


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("bfloat16", "Keep a float32 master of it"),
        ("float32", "Raise the learning rate, or freeze the layer"),
    ],
)
def test_the_remedy_for_dead_updates_is_of_the_dtype(dtype, remedy):
    update = UpdateOfVariable(
        variable="kernel",
        dtype=dtype,
        elements=100,
        median_ratio=1e-9,
        dead=0.5,
        dead_bfloat16=1.0,
        dead_float16=1.0,
    )
    (found,) = judgement.of_updates([update])
    assert found.remedy.startswith(remedy)


def test_what_is_rounded_stochastically_is_not_lost():
    model = make(dense("hidden"), policy="bfloat16")
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(1e-4), storage=None, rounding="stochastic"
    )
    mp.compile(model, optimizer, "mse")
    assert rounds_stochastically(model.optimizer)
    mp.compile(model, keras.optimizers.SGD(1e-4), "mse")
    assert not rounds_stochastically(model.optimizer)


def test_the_policy_of_the_device():
    report = mp.diagnose(make(), *data(), loss="mse", policy=mp.rules.SAFE)
    own = mp.recommended_policy().policy
    assert str(own) in report.policy or report.policy == {"float32": 1}


@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16",
        pytest.param("bfloat16", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_behind(policy):
    model = make(
        dense("hidden"),
        lambda: keras.layers.BatchNormalization(),
        lambda: keras.layers.Dropout(0.5),
        policy=policy,
    )
    mp.compile(model, "adam", "mse", metrics=["mae"])
    x, y = data()
    model.fit(x, y, verbose=0)
    variables = [
        *model.variables,
        *model.optimizer.variables,
        *model.metrics_variables,
    ]
    before = [keras.ops.convert_to_numpy(v) for v in variables]
    policies = [e.dtype_policy for e in model.layers]
    train_function = model.train_function
    mp.diagnose(model, x, y)
    mp.find_nonfinite(model, x, y)
    for old, variable in zip(before, variables, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(variable))
    assert all(
        a is b.dtype_policy for a, b in zip(policies, model.layers, strict=True)
    )
    assert not [e for e in model.layers if "call" in vars(e)]
    assert model.train_function is train_function


def test_dropout_does_not_disturb_the_comparison():
    model = make(dense("hidden"), lambda: keras.layers.Dropout(0.5))
    report = mp.diagnose(model, *data(), loss="mse", loss_scale=64.0)
    for each in report.of_role(roles.WEIGHT_GRADIENT):
        assert each.cosine > 0.9999
    assert report.loss == pytest.approx(report.float32_loss, rel=1e-3)


def test_the_loss_scale_optimizer_of_keras():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")  # wrapped by Keras; nothing is built
    report = mp.diagnose(model, *data(), jit_compile=False)
    assert report.loss_scale == 2.0**15
    assert report.window.holds(1024.0)
    assert not report.window.holds(2.0**15)  # so there is no step to judge
    assert report.updates == ()


@pytest.mark.slow
def test_a_train_step_with_a_loss_of_its_own():
    class Step(mp.TrainStep):
        def compute_loss(self, model, batch):
            x, y = batch
            return tf.reduce_mean((model(x) - y) ** 2)

    keras.utils.set_random_seed(0)
    step = Step(make(dense("hidden")), "adam")
    x, y = data()
    own = mp.diagnose(step, x, y.astype("float32"))
    compiled = mp.diagnose(step.model, x, y, loss="mse", loss_scale=2.0**15)
    assert own.loss == pytest.approx(compiled.loss, rel=1e-6)
    assert own.window == compiled.window
    assert own.updates


@pytest.mark.slow
def test_a_dataset_and_named_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    outputs = keras.layers.Dense(1)(keras.layers.Add()([a, b]))
    model = keras.Model({"a": a, "b": b}, {"out": outputs})
    x, y = data(features=4)
    x = {"a": x, "b": x}
    arrays = mp.diagnose(model, x, {"out": y}, loss={"out": "mse"})
    dataset = tf.data.Dataset.from_tensor_slices((x, {"out": y}))
    batches = mp.diagnose(model, dataset.batch(BATCH), loss={"out": "mse"})
    assert arrays.loss == pytest.approx(batches.loss, rel=1e-6)
    assert arrays.batch_size == batches.batch_size == BATCH


def test_examples_are_taken_from_all_over_the_data():
    x = np.arange(1000, dtype="float32")[:, None]
    batch, _, _ = Data(x, None, None, 5).spread()
    np.testing.assert_array_equal(batch[:, 0], [0, 250, 500, 749, 999])


def test_the_report_in_every_format(tmp_path):
    model = make(rescaling("weak", 2e4), dense("hidden"))
    mp.compile(model, "adam", "mse")
    report = mp.diagnose(model, *data())
    for suffix in ("html", "md", "json", "csv", "txt"):
        path = tmp_path / f"report.{suffix}"
        report.save(path)
        assert "weak" in path.read_text()
    fields = json.loads((tmp_path / "report.json").read_text())
    assert fields["verdict"] == report.verdict
    assert len(fields["tensors"]) == len(report.tensors)
    assert report.verdict in str(report)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "must be compiled, or `loss` be given"),
        ({"loss": "mse", "batch_size": 0}, ValueError, "at least 1"),
        ({"loss": "mse", "batch_size": 2.0}, TypeError, "must be an int"),
        ({"loss": "mse", "policy": 16}, TypeError, "A policy must be"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        mp.diagnose(make(), *data(), **options)


def test_wrong_data():
    x, y = data()
    with pytest.raises(ValueError, match="same number of examples"):
        mp.diagnose(make(), x, y[:-1], loss="mse")
    with pytest.raises(TypeError, match=r"must be a `keras\.Model`"):
        mp.diagnose("model", x, y)
    autocast = make(policy="float32")
    mp.compile(autocast, "adam", "mse", autocast="bfloat16")
    with pytest.raises(ValueError, match="compiled with autocast"):
        mp.diagnose(autocast, x, y)


@keras.saving.register_keras_serializable("test_diagnose")
class UnitLength(keras.layers.Layer):
    def call(self, x):
        squares = keras.ops.sum(keras.ops.square(x), axis=-1, keepdims=True)
        return x / keras.ops.sqrt(squares)


def test_an_output_that_vanishes_inside_of_its_layer():
    model = make(lambda: UnitLength(name="length"), dense("hidden"))
    x, y = data()
    report = mp.diagnose(model, 1000 * x, y, loss="mse", loss_scale=1.0)
    assert report.culprit is None
    assert codes(report, "error") == {("vanished-output", "length")}
    assert report.findings[0].value > 0.5  # squares of 1000 are inf in float16


def test_a_step_with_nan_says_nothing_of_updates():
    model = make(dense("first"), rescaling("large", 1e6))
    x, y = data()
    mp.compile(model, "adam", "mse", jit_compile=False)
    report = mp.diagnose(model, x, y)
    assert report.culprit.layer == "large"
    assert report.updates == ()
    assert not [e for e in report.findings if e.code == "dead-updates"]
    for each in report.of_role(roles.WEIGHT_GRADIENT):
        assert each.lost is None
