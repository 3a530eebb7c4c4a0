"""`mp.convert`: the same model in another precision, both ways."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

L = keras.layers
POLICIES = ["mixed_float16", "mixed_bfloat16"]
# Of outputs of order 1, a few layers deep.
TOLERANCE = {"mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}


def randomize(model):
    """Gives every weight a value of its own, biases and averages too."""
    rng = np.random.default_rng(0)
    for v in model.weights:
        v.assign(np.abs(rng.normal(size=v.shape)) * 0.3)
    return model


def images():
    rng = np.random.default_rng(1)
    return rng.uniform(0, 255, (4, 8, 8, 3)).astype("float32")


def sequential():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Rescaling(1 / 255),
            L.Conv2D(4, 3, activation="relu", name="conv"),
            L.BatchNormalization(),
            L.GlobalAveragePooling2D(),
            L.Dense(3, activation="softmax"),
        ]
    )


def functional():
    """Several inputs and outputs, a shared layer, a nested model, plain ops."""
    first = keras.Input((8, 8, 3), name="a")
    second = keras.Input((8, 8, 3), name="b")
    shared = L.Conv2D(4, 3, name="shared")
    inner_input = keras.Input((6, 6, 4))
    inner = keras.Model(
        inner_input,
        L.GlobalAveragePooling2D()(L.BatchNormalization()(inner_input)),
        name="inner",
    )
    x = inner(shared(first / 255.0)) + inner(shared(second / 255.0))
    x = L.Dense(4, activation="gelu", name="hidden")(x)
    return keras.Model(
        {"a": first, "b": second},
        {"a": L.Softmax()(L.Dense(3, name="logits")(x)), "b": L.Dense(1)(x)},
    )


class Block(L.Layer):
    """A user's layer with sublayers that no config shows."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.norm = L.LayerNormalization()
        self.dense = L.Dense(units)

    def call(self, x):
        return x + self.dense(self.norm(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Subclassed(keras.Model):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.pool = L.GlobalAveragePooling2D()
        self.blocks = [Block(units) for _ in range(2)]
        self.head = L.Dense(2)

    def call(self, x):
        x = self.pool(x / 255.0)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class WithoutConfig(Subclassed):
    get_config = keras.Model.get_config


MODELS = {
    "sequential": (sequential, images),
    "functional": (functional, lambda: {"a": images(), "b": images()[::-1]}),
    "subclassed": (lambda: Subclassed(3), images),
}


def made(name):
    make, inputs = MODELS[name]
    model = make()
    x = inputs()
    model(x)
    return randomize(model), x


def flat(outputs):
    return [np.asarray(t) for t in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, policy):
    model, x = made(name)
    expected = flat(model(x))
    mixed = mp.convert(model, policy)
    assert type(mixed) is type(model)
    assert mixed is not model
    assert mixed.name == model.name
    assert [layer.name for layer in mixed.layers] == [
        layer.name for layer in model.layers
    ]
    for a, b in zip(flat(mixed(x)), expected, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=TOLERANCE[policy], rtol=1e-2)
        assert (a != b).any()  # it did compute in 16 bits
    for a, b in zip(mixed.weights, model.weights, strict=True):
        assert a.dtype == b.dtype == "float32"
        np.testing.assert_array_equal(a, b)
    back = mp.convert(mixed, "float32")
    for a, b in zip(flat(back(x)), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for layer in back._flatten_layers():
        assert layer.dtype_policy == keras.DTypePolicy("float32")
        assert not type(layer).__module__.startswith("tf_mixprec")
    np.testing.assert_array_equal(flat(model(x))[0], expected[0])


@pytest.mark.parametrize("name", ["sequential", "functional"])
def test_a_saved_model_loads(name, tmp_path):
    model, x = made(name)
    mixed = mp.convert(model, "mixed_float16")
    mixed.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(flat(loaded(x)), flat(mixed(x)), strict=True):
        np.testing.assert_array_equal(a, b)
    weights = tmp_path / "model.weights.h5"
    model.save_weights(weights)
    other, _ = made(name)
    other = mp.convert(other, "mixed_float16")
    other.load_weights(weights)
    np.testing.assert_array_equal(flat(other(x))[0], flat(mixed(x))[0])


def test_the_policies_and_the_report():
    keras.backend.clear_session()  # names start anew
    model, _ = made("functional")
    mixed, report = mp.convert(model, "mixed_float16", return_report=True)
    policies = {each.path: each.policy for each in report.layers}
    assert policies == {
        "shared": "mixed_float16",
        "inner/batch_normalization": "mixed_float16",
        "inner/global_average_pooling2d": "mixed_float16",
        "hidden": "mixed_float16",
        "logits": "float32",
        "softmax": "float32",
        "dense": "float32",
    }
    by_path = {each.path: each for each in report.layers}
    assert by_path["logits"].kind == "output"
    assert by_path["shared"].rule == ""
    norm = next(e for e in report.layers if e.kind == "normalization")
    assert norm.layer_class == "mp.layers.BatchNormalization"
    assert norm.rule.startswith("kind=normalization")
    assert mixed.get_layer("shared").compute_dtype == "float16"
    inner = mixed.get_layer("inner")
    assert isinstance(inner.layers[1], mp.layers.BatchNormalization)
    for each in report.layers:
        assert each.path in str(report)
    assert not report.in_place


def test_sublayers_of_a_users_layer():
    model, _ = made("subclassed")
    mixed = mp.convert(model, "mixed_bfloat16")
    block = mixed.blocks[0]
    assert type(block) is Block
    assert block.dense.compute_dtype == "bfloat16"
    assert block.norm.compute_dtype == "float32"
    assert block.norm.dtype_policy.output_dtype == "bfloat16"
    assert mixed.head.compute_dtype == "bfloat16"  # no graph says it is one
    assert mixed(images()).dtype == "float32"


def test_rules_choose():
    model, _ = made("sequential")
    rules = mp.PrecisionRules(
        [
            mp.rules.Rule(policy="float32", path="conv"),
            mp.rules.Rule(policy="mixed_float16", kind="output"),
            mp.rules.Rule(policy="float32", layer_class="Conv2D", reason="b"),
        ],
        policy="mixed_bfloat16",
    )
    mixed, report = mp.convert(model, rules, return_report=True)
    assert [layer.compute_dtype for layer in mixed.layers] == [
        "bfloat16",
        "float32",
        "bfloat16",
        "bfloat16",
        "float16",
    ]
    conv = next(e for e in report.layers if e.path == "conv")
    assert conv.other_rules == ("layer_class=Conv2D: b",)
    assert "before: layer_class=Conv2D" in str(report)


@pytest.mark.parametrize(
    ("rules", "compute", "variable", "norm"),
    [
        (mp.rules.O0, "float32", "float32", "float32"),
        (mp.rules.O1, "float16", "float32", "float32"),
        (mp.rules.O2, "float16", "float16", "float32"),
        (mp.rules.O3, "float16", "float16", "float16"),
    ],
    ids=["O0", "O1", "O2", "O3"],
)
def test_levels_of_apex(rules, compute, variable, norm):
    """The table of `apex.amp`: opt levels, keep_batchnorm_fp32 included."""
    model, x = made("sequential")
    mixed = mp.convert(model, rules)
    conv, batch_norm = mixed.layers[1:3]
    assert conv.compute_dtype == compute
    assert conv.kernel.dtype == variable
    assert batch_norm.compute_dtype == norm
    assert batch_norm.moving_variance.dtype == norm
    assert np.isfinite(np.asarray(mixed(x), "float32")).all()


def test_variables_in_16_bits():
    model, x = made("sequential")
    mixed = mp.convert(model, "mixed_bfloat16", variables="bfloat16")
    assert {v.dtype for v in mixed.weights} == {"bfloat16"}
    pure = mp.convert(model, "bfloat16")
    assert {v.dtype for v in pure.layers[2].weights} == {"float32"}
    assert pure.layers[1].kernel.dtype == "bfloat16"
    np.testing.assert_allclose(pure(x), model(x), atol=0.05)


def test_auto_asks_the_device(monkeypatch):
    from tf_mixprec.conversion import convert as module_function

    module = __import__(module_function.__module__, fromlist=["x"])
    recommendation = mp.Recommendation(
        policy=keras.DTypePolicy("mixed_bfloat16"), reason="fast", facts={}
    )
    monkeypatch.setattr(module, "recommended_policy", lambda: recommendation)
    model, _ = made("sequential")
    mixed, report = mp.convert(model, return_report=True)
    assert mixed.layers[1].compute_dtype == "bfloat16"
    assert report.reason == "fast"
    assert "fast" in str(report)


def test_a_rule_for_no_layer_is_told():
    model, _ = made("sequential")
    rules = mp.PrecisionRules(
        [mp.rules.Rule(policy="float32", path="cnov"), *mp.rules.SAFE.rules],
        "mixed_float16",
    )
    with pytest.warns(mp.ConversionWarning, match="path=cnov"):
        mp.convert(model, rules)


def test_the_report_says_that_heads_are_not_known():
    model, _ = made("subclassed")
    _, report = mp.convert(model, "mixed_float16", return_report=True)
    assert "output layers are not known" in str(report)
    model, _ = made("sequential")
    _, report = mp.convert(model, "mixed_float16", return_report=True)
    assert report.notes == ()


def test_a_recommendation_is_a_policy():
    model, _ = made("sequential")
    recommendation = mp.Recommendation(
        policy=keras.DTypePolicy("mixed_bfloat16"), reason="", facts={}
    )
    mixed = mp.convert(model, recommendation)
    assert mixed.layers[1].compute_dtype == "bfloat16"


def test_what_is_trainable_and_random_states_are_kept():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(4, trainable=False),
            L.Dropout(0.5, seed=1),
            keras.Sequential([L.Dense(4), L.Dense(4)]),
            L.Dense(2),
        ]
    )
    model.layers[2].layers[0].trainable = False
    x = np.ones((4, 4), "float32")
    model(x, training=True)  # moves the random state
    mixed = mp.convert(model, "mixed_bfloat16")
    flags = [w.trainable for w in model.weights]
    assert [w.trainable for w in mixed.weights] == flags
    assert flags == [False] * 4 + [True] * 4
    seeds = mixed.layers[1].seed_generator.state
    np.testing.assert_array_equal(seeds, model.layers[1].seed_generator.state)
    frozen = keras.Sequential([keras.Input((2,)), L.Dense(2)])
    frozen.trainable = False
    assert not mp.convert(frozen, "mixed_bfloat16").trainable


def test_integers_and_strings_are_never_cast():
    inputs = keras.Input((), dtype="string")
    lookup = L.StringLookup(vocabulary=["a", "b"])
    hidden = L.Embedding(3, 2)(lookup(inputs))
    model = keras.Model(inputs, L.Dense(1)(hidden))
    mixed = mp.convert(model, "mixed_float16")
    np.testing.assert_allclose(
        mixed(tf.constant(["b", "a"])),
        model(tf.constant(["b", "a"])),
        atol=1e-3,
    )
    assert mixed.layers[1].compute_dtype == model.layers[1].compute_dtype


def test_lambdas_and_unregistered_classes_convert():
    class Local(L.Layer):
        def call(self, x):
            return x * 2

    model = keras.Sequential(
        [keras.Input((2,)), L.Lambda(lambda x: x + 1), Local(), L.Dense(1)]
    )
    mixed = mp.convert(model, "mixed_bfloat16")
    assert type(mixed.layers[1]) is Local
    x = np.ones((1, 2), "float32")
    np.testing.assert_allclose(mixed(x), model(x), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: L.Bidirectional(L.LSTM(2, return_sequences=True)),
        lambda: L.RNN([L.LSTMCell(2), L.GRUCell(2)], return_sequences=True),
        lambda: L.TimeDistributed(L.Dense(2)),
        lambda: L.TimeDistributed(keras.Sequential([L.Dense(2)])),
        lambda: mp.layers.Precision(L.Dense(2), "float32"),
        lambda: L.Dense(
            2, kernel_regularizer="l2", kernel_constraint="non_neg"
        ),
    ],
    ids=["bidirectional", "cells", "time", "model", "precision", "plain"],
)
def test_composite_layers(layer):
    model = keras.Sequential([keras.Input((3, 2)), layer(), L.Dense(1)])
    randomize(model)
    x = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("float32")
    mixed = mp.convert(model, "mixed_bfloat16")
    assert mixed.layers[0].dtype_policy.compute_dtype == "bfloat16"
    np.testing.assert_allclose(mixed(x), model(x), atol=5e-2)
    back = mp.convert(mixed, "float32")
    np.testing.assert_array_equal(back(x), model(x))


def test_a_precision_of_ones_own_is_kept():
    model = keras.Sequential(
        [
            keras.Input((2,)),
            mp.layers.Precision(L.Dense(2), "float32"),
            mp.layers.Precision(L.Dense(2), "bfloat16"),
            L.Dense(1),
        ]
    )
    mixed = mp.convert(model, "mixed_float16")
    inside = [layer.layer.compute_dtype for layer in mixed.layers[:2]]
    assert inside == ["float32", "bfloat16"]
    assert mixed.layers[0].compute_dtype == "float16"
    back = mp.convert(mixed, "float32")
    assert back.layers[1].layer.compute_dtype == "float32"
    assert back.layers[1].policy.compute_dtype == "float32"


def test_a_model_made_under_a_policy_of_keras():
    with mp.policy_scope("mixed_float16"):
        model, x = made("sequential")
    assert not np.isfinite(model(np.full_like(x, 7e4))).all()
    mixed = mp.convert(model, "mixed_float16")
    assert np.isfinite(mixed(np.full_like(x, 7e4))).all()
    assert isinstance(mixed.layers[0], mp.layers.Rescaling)
    assert mixed.layers[-1].compute_dtype == "float32"


def test_a_quantized_layer_is_left_alone():
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2)])
    model.layers[0].quantize("int8")
    mixed = mp.convert(model, "mixed_bfloat16")
    assert mixed.layers[0].quantization_mode == "int8"
    x = np.ones((1, 4), "float32")
    np.testing.assert_allclose(mixed(x), model(x), atol=1e-2)


def test_a_model_without_config_is_changed_itself():
    model = WithoutConfig(3)
    x = images()
    expected = np.asarray(randomize_called(model, x))
    with pytest.warns(mp.ConversionWarning, match="no `get_config`"):
        mixed, report = mp.convert(model, "mixed_bfloat16", return_report=True)
    assert mixed is model
    assert report.in_place
    assert mixed.blocks[0].dense.compute_dtype == "bfloat16"
    np.testing.assert_allclose(mixed(x), expected, atol=4e-2, rtol=1e-2)
    with pytest.warns(mp.ConversionWarning):
        mp.convert(model, "float32")
    np.testing.assert_array_equal(model(x), expected)


def randomize_called(model, x):
    model(x)
    return randomize(model)(x)


def test_variables_of_such_a_model_cannot_change():
    model = WithoutConfig(3)
    model(images())
    with pytest.raises(ValueError, match="implement `get_config`"):
        mp.convert(model, "bfloat16")
    assert model.head.compute_dtype == "float32"


def test_defaults_are_not_taken_for_what_was_given():
    """Keras's automatic config of a model has the defaults in it."""

    class Model(keras.Model):
        def __init__(self, rate=0.0):
            super().__init__()
            self.rate = rate
            self.dense = L.Dense(1)

        def call(self, x):
            return self.dense(x) * self.rate

    model = Model(3.0)
    x = np.ones((1, 2), "float32")
    expected = model(x)
    with pytest.warns(mp.ConversionWarning):
        mixed = mp.convert(model, "mixed_bfloat16")
    np.testing.assert_allclose(mixed(x), expected, atol=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((L.Dense(1),), TypeError, "keras.Model"),
        ((keras.Sequential(), 3), TypeError, "policy_or_rules=3"),
        ((keras.Sequential(), "float61"), ValueError, "float61"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        mp.convert(*arguments)


def test_wrong_variables():
    with pytest.raises(ValueError, match="variables='int8'"):
        mp.convert(keras.Sequential(), "float32", variables="int8")


def test_an_unbuilt_model_converts():
    model = keras.Sequential([L.Dense(2), L.LayerNormalization(), L.Dense(1)])
    mixed = mp.convert(model, "mixed_float16")
    assert not mixed.built
    assert [layer.compute_dtype for layer in mixed.layers] == [
        "float16",
        "float32",
        "float32",
    ]
    assert mixed(np.ones((1, 2))).dtype == "float32"


def test_converting_trains():
    """`fit` after a conversion: a loss that falls, with a compiled wrapper."""
    model, x = made("sequential")
    mixed = mp.convert(model, "mixed_float16")
    mixed.compile(mp.wrap("adam"), "sparse_categorical_crossentropy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = mixed.fit(x, np.arange(4) % 3, epochs=5, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]


def test_gelu_takes_float32_inside_and_comes_back(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((4, 8)),
            L.Dense(16, "gelu"),
            L.Activation("gelu"),
            L.Conv1D(4, 2, activation="relu"),
            L.Dense(2),
        ]
    )
    mixed = mp.convert(model, "mixed_bfloat16")
    names = [layer.activation.__name__ for layer in mixed.layers]
    assert names == ["wide_gelu", "wide_gelu", "relu", "linear"]
    mixed.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].activation is mixed.layers[0].activation
    for each in (mixed, loaded):
        back = mp.convert(each, "float32")
        assert back.layers[0].activation is keras.activations.gelu
        assert back.layers[1].activation is keras.activations.gelu
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    np.testing.assert_array_equal(back(x), model(x))
