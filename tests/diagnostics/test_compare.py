"""Comparisons against NumPy, and against what casts do."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.diagnostics import comparison_step as roles
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tensor_pairs import decoded_pair
from tf_mixprec.diagnostics.tensor_pairs import pair_statistics

POLICIES = ["mixed_float16", "mixed_bfloat16"]


def data(size=32, features=8):
    x = np.random.default_rng(0).normal(size=(size, features))
    return x.astype("float32"), np.tanh(x.sum(axis=1, keepdims=True))


def make(policy="float32", *extra):
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", name="hidden"),
            *extra,
            keras.layers.Dense(1, name="head", dtype="float32"),
        ],
        name="model",
    )


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pairs_are_compared_as_numpy_does(dtype, jit_compile):
    rng = np.random.default_rng(0)
    wide = (rng.normal(size=500) * 2.0 ** rng.integers(-20, 8, 500)).astype(
        "float32"
    )
    narrow = wide.astype(ml_dtypes.finfo(dtype).dtype)
    narrow[7] = np.nan
    function = tf.function(
        lambda a, b: pair_statistics(a, b, dtype), jit_compile=jit_compile
    )
    found = decoded_pair(function(narrow, wide).numpy())
    good = np.isfinite(narrow.astype("float64"))
    a, b = (e.astype("float64")[good] for e in (narrow, wide))
    info = ml_dtypes.finfo(dtype)
    exponents = np.maximum(
        np.floor(np.log2(np.abs(b))), np.log2(float(info.smallest_normal))
    )
    ulps = np.abs(a - b) / 2.0 ** (exponents - info.nmant)
    norm = np.linalg.norm
    assert (found.size, found.nonfinite) == (500, 1)
    assert found.relative_error == pytest.approx(norm(a - b) / norm(b))
    assert found.max_error == np.abs(a - b).max()
    assert found.cosine == pytest.approx(a @ b / norm(a) / norm(b))
    assert found.norm_ratio == pytest.approx(norm(a) / norm(b))
    # Rounding to nearest is off by half an ulp at the most.
    assert found.median_ulps == pytest.approx(np.median(ulps), abs=0.01)
    assert found.most_ulps == pytest.approx(np.quantile(ulps, 0.99), abs=0.01)
    assert found.most_ulps <= 0.5


def test_quantiles_of_long_tensors_are_of_a_sample():
    wide = tf.ones([200_000])
    narrow = wide + tf.random.uniform([200_000], maxval=2.0**-10)
    found = decoded_pair(pair_statistics(narrow, wide, "float16").numpy())
    assert found.median_ulps == pytest.approx(0.5, abs=0.02)
    assert found.most_ulps == pytest.approx(0.99, abs=0.02)


def test_nothing_to_compare():
    empty = tf.zeros([0, 3])
    found = decoded_pair(pair_statistics(empty, empty, "float16").numpy())
    assert (found.size, found.max_error, found.most_ulps) == (0, 0.0, 0.0)
    assert np.isnan(found.cosine)


def test_outputs_are_compared_with_float32():
    model = make()
    x, y = data()
    report = mp.compare(model, x, y, loss="mse", policies=POLICIES)
    kernel, _ = model.get_layer("hidden").get_weights()
    wide = np.tanh(x.astype("float64") @ kernel)
    for policy, dtype in zip(
        report.policies, ("float16", "bfloat16"), strict=True
    ):
        keras.utils.set_random_seed(0)
        mixed = mp.convert(model, f"mixed_{dtype}")
        hidden = keras.Sequential(mixed.layers[:1])(x)
        narrow = keras.ops.convert_to_numpy(keras.ops.cast(hidden, "float64"))
        (found,) = [
            e for e in policy.of_role(roles.OUTPUT) if e.name == "hidden"
        ]
        error = np.linalg.norm(narrow - wide) / np.linalg.norm(wide)
        assert found.dtype == dtype
        assert found.difference.relative_error == pytest.approx(error, rel=0.3)


def test_gradients_are_compared_with_float32():
    model = make()
    x, y = data()
    report = mp.compare(
        model, x, y, loss="mse", policies=["mixed_bfloat16"], loss_scale=8.0
    )
    gradients = []
    for each in (model, mp.convert(model, "mixed_bfloat16")):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.cast(each(x), "float32") - y) ** 2)
        gradients.append(tape.gradient(loss, each.trainable_variables))
    found = report.policies[0].of_role(roles.WEIGHT_GRADIENT)
    for each, wide, narrow in zip(found, *gradients, strict=True):
        a, b = (np.float64(e).ravel() for e in (narrow, wide))
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert 1 - each.difference.cosine == pytest.approx(
            1 - cosine, rel=0.5, abs=1e-5
        )
    assert [e.name for e in found] == [
        "hidden/kernel",
        "hidden/bias",
        "head/kernel",
        "head/bias",
    ]


def test_float32_is_float32():
    report = mp.compare(make(), *data(), loss="mse", policies=["float32"])
    assert report.findings == ()
    assert report.policies[0].loss == report.float32_loss
    assert {e.difference.max_error for e in report.policies[0].tensors} == {0}


def test_gradients_that_are_lost_whole_are_found():
    x, y = data()
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "relu", name="hidden"),
            keras.layers.Dense(1, name="head", dtype="float32"),
        ]
    )
    kernel = model.get_layer("hidden").kernel
    kernel.assign(np.full(kernel.shape, 1e-9))  # 0 in float16: relu is off
    report = mp.compare(model, x, y, loss="mse")
    (policy,) = report.policies
    gradient = policy.least_cosine
    assert gradient.name == "hidden/kernel"
    assert gradient.difference.relative_error == 1.0
    assert gradient.difference.norm_ratio == gradient.difference.cosine == 0.0
    (finding, *_) = [e for e in report.findings if e.code == "gradient-turns"]
    assert (finding.layer, finding.value) == ("hidden", 0.0)
    assert report.verdict.startswith(finding.what)


def test_what_overflows_is_an_error():
    model = make("float32", keras.layers.Rescaling(1e6, name="large"))
    report = mp.compare(
        model,
        *data(),
        loss="mse",
        policies=[mp.PrecisionRules([], "mixed_float16")],
        loss_scale=1.0,
    )
    assert report.has_errors
    (finding,) = [e for e in report.findings if e.level == "error"]
    assert finding.layer == "large"


def test_a_layer_that_loses_digits_is_named():
    lossy = keras.layers.Rescaling(1.0, offset=300.0, name="lossy")
    back = keras.layers.Rescaling(1.0, offset=-300.0, name="back")
    report = mp.compare(
        make("float32", lossy, back),
        *data(),
        loss="mse",
        policies=[mp.PrecisionRules([], "mixed_bfloat16")],
    )
    codes = {(e.code, e.layer) for e in report.findings}
    assert ("error-grows", "back") in codes
    assert any(code == "gradient-turns" for code, _ in codes)


def test_the_model_is_left_as_it_is():
    extra = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = make("mixed_float16", *extra)
    mp.compile(model, "adam", "mse")
    x, y = data()
    model.fit(x, y, verbose=0)
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    report = mp.compare(model, x, y)
    assert report.policies[0].policy == "as it is"
    assert report.loss_scale == float(model.optimizer.loss_scale)
    for old, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(variable))
    for each in report.policies[0].of_role(roles.WEIGHT_GRADIENT):
        # The bias before a normalization has no gradient but rounding.
        assert each.name == "hidden/bias" or each.difference.cosine > 0.999


def test_the_report_has_figures_and_tables(tmp_path):
    report = mp.compare(make(), *data(), loss="mse", policies=POLICIES)
    report.save(tmp_path / "page.html")
    assert "mixed_bfloat16" in (tmp_path / "page.html").read_text()
    assert "mixed_float16: outputs" in str(report)


def test_a_gradient_that_is_only_rounding_does_not_count():
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((5, 8))
    h = keras.layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    outputs = keras.layers.Dense(3, dtype="float32")(h)
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 5, 8)), rng.normal(size=(16, 5, 3))
    report = mp.compare(model, x, y, loss="mse")
    assert report.findings == ()
    assert report.policies[0].least_cosine.difference.cosine > 0.999


def test_what_is_not_finite_in_float32_is_an_error():
    x, y = data()
    x[3] = np.nan
    report = mp.compare(make("mixed_float16"), x, y, loss="mse")
    assert report.has_errors
    assert report.findings[0].code == "nonfinite-float32"


def test_one_policy_need_not_be_in_a_list():
    report = mp.compare(make(), *data(), loss="mse", policies="mixed_float16")
    assert [e.policy for e in report.policies] == ["mixed_float16"]


def test_wrong_policies():
    with pytest.raises(ValueError, match="must have an entry"):
        mp.compare(make(), *data(), loss="mse", policies=[])
    with pytest.raises(TypeError, match="A policy must be"):
        mp.compare(make(), *data(), loss="mse", policies=[16])


def test_a_scale_at_its_minimum_is_not_compared_with():
    model = make("mixed_float16")
    model.compile(mp.wrap(keras.optimizers.SGD(), initial_scale=256.0), "mse")
    optimizer = model.optimizer
    optimizer.loss_scale = optimizer.min_scale  # as a run that is stuck has it
    report = mp.compare(model, *data())
    assert (report.loss_scale, report.stuck_scale) == (256.0, 1.0)
    assert "256, the initial one; the present one, 1, is at" in str(report)
    report = mp.compare(model, *data(), loss_scale=1.0)
    assert (report.loss_scale, report.stuck_scale) == (1.0, None)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda sgd: mp.wrap(sgd, initial_scale=1.0), id="began"),
        pytest.param(lambda sgd: mp.wrap(sgd, dynamic=False), id="fixed"),
        pytest.param(keras.optimizers.LossScaleOptimizer, id="of_keras"),
        pytest.param(lambda sgd: sgd, id="none"),
    ],
)
def test_a_scale_that_has_not_fallen_is_taken(optimizer):
    model = make("mixed_float16")
    model.compile(optimizer(keras.optimizers.SGD()), "mse")
    assert Subject(model).initial_scale is None


def test_a_scale_of_keras_that_is_zero_has_fallen():
    model = make("mixed_float16")
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.dynamic_scale.assign(0.0)
    assert Subject(model).initial_scale == 2.0**15
