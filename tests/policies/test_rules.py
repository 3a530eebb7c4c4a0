"""`mp.PrecisionRules`: first match wins, JSON in and out; kinds of layers."""

import json

import keras
import pytest

import tf_mixprec as mp
from tf_mixprec.policies.kinds import kind_of

Rule = mp.rules.Rule
DENSE = keras.layers.Dense(1)


def test_the_first_match_wins_and_the_others_are_listed():
    rules = mp.PrecisionRules(
        [
            Rule(policy="float32", path="head/.*"),
            Rule(policy="mixed_float16", layer_class=keras.layers.Dense),
            Rule(policy="target"),
        ]
    )
    policies = [r.policy for r in rules.matching("head/a", DENSE, "matmul")]
    assert policies == ["float32", "mixed_float16", "target"] or policies == [
        "float32",
        str(mp.Policy("mixed_float16")),
        "target",
    ]
    assert len(rules.matching("body/a", DENSE, "matmul")) == 2
    assert len(rules.matching("a", keras.layers.Flatten(), "other")) == 1


class Mine(keras.layers.Dense):
    pass


@pytest.mark.parametrize(
    ("rule", "path", "layer", "kind", "expected"),
    [
        ({"path": "a/b"}, "a/b", DENSE, "matmul", True),
        ({"path": "a"}, "a/b", DENSE, "matmul", False),
        ({"path": ".*b"}, "a/b", DENSE, "matmul", True),
        ({"layer_class": "Dense"}, "a", DENSE, "matmul", True),
        ({"layer_class": "Dense"}, "a", Mine(1), "matmul", True),
        ({"layer_class": Mine}, "a", DENSE, "matmul", False),
        ({"layer_class": Mine}, "a", Mine(1), "matmul", True),
        ({"layer_class": "Layer"}, "a", DENSE, "matmul", True),
        ({"kind": "matmul"}, "a", DENSE, "matmul", True),
        ({"kind": "output"}, "a", DENSE, "matmul", False),
        ({"kind": "matmul", "path": "b"}, "a", DENSE, "matmul", False),
        ({}, "a", DENSE, "matmul", True),
    ],
)
def test_what_a_rule_matches(rule, path, layer, kind, expected):
    rule = Rule(policy="target", **rule)
    assert rule.matches(path, layer, kind) is expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "flaot16"}, "flaot16"),
        ({"policy": "target", "kind": "dense"}, "kind='dense'"),
        ({"policy": "target", "path": "("}, r"path='\('"),
    ],
)
def test_wrong_rules(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rule(**arguments)


def test_wrong_lists():
    with pytest.raises(TypeError, match="Rule"):
        mp.PrecisionRules([{"policy": "target"}])
    with pytest.raises(ValueError, match="float61"):
        mp.PrecisionRules([], policy="float61")
    with pytest.raises(ValueError, match="classes"):
        mp.PrecisionRules.from_json(
            '{"rules": [{"policy": "target", "classes": "Dense"}]}'
        )
    with pytest.raises(ValueError, match=r"rules\.json"):
        mp.PrecisionRules.from_json("rules.json")


@pytest.mark.parametrize("name", ["SAFE", "O0", "O1", "O2", "O3"])
def test_json_and_config_are_exact(name):
    rules = getattr(mp.rules, name)
    assert mp.PrecisionRules.from_json(rules.to_json()) == rules
    config = json.loads(json.dumps(rules.get_config()))
    again = mp.PrecisionRules.from_config(config)
    assert again == rules
    assert again.get_config() == rules.get_config()
    assert hash(again) == hash(rules)
    serialized = keras.saving.serialize_keras_object(rules)
    assert keras.saving.deserialize_keras_object(serialized) == rules


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (DENSE, "matmul"),
        (keras.layers.Conv2D(1, 1), "convolution"),
        (keras.layers.LSTM(1), "recurrent"),
        (keras.layers.Bidirectional(keras.layers.GRU(1)), "recurrent"),
        (keras.layers.MultiHeadAttention(1, 1), "attention"),
        (keras.layers.GroupQueryAttention(1, 1, 1), "attention"),
        (keras.layers.Embedding(2, 2), "embedding"),
        (keras.layers.BatchNormalization(), "normalization"),
        (keras.layers.Normalization(), "preprocessing"),
        (keras.layers.RandomContrast(0.1), "preprocessing"),
        (keras.layers.AveragePooling1D(2), "average"),
        (keras.layers.UpSampling2D(), "resize"),
        (keras.layers.Softmax(), "softmax"),
        (keras.layers.Activation("softmax"), "softmax"),
        (keras.layers.Dense(1, activation="log_softmax"), "softmax"),
        (keras.layers.Activation("relu"), "other"),
        (keras.layers.Dense(1, activity_regularizer="l2"), "regularized"),
        (keras.layers.ActivityRegularization(l2=0.1), "regularized"),
        (AddsLoss(), "add_loss"),
        (keras.layers.Dot(1), "dot"),
        (keras.layers.TimeDistributed(keras.layers.Softmax()), "softmax"),
        (keras.layers.InputLayer((2,)), "untouched"),
        (keras.layers.Dense(1, dtype="int32"), "untouched"),
        (keras.Sequential(), "model"),
        (Mine(1), "matmul"),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_kinds(layer, kind):
    assert kind_of(layer) == kind


def test_kinds_that_need_more():
    assert kind_of(DENSE, is_output=True) == "output"
    regularized = keras.layers.Dense(1, activity_regularizer="l2")
    assert kind_of(regularized, is_output=True) == "regularized"
    quantized = keras.layers.Dense(1)
    quantized.build((1, 1))
    quantized.quantize("int8")
    assert kind_of(quantized) == "quantized"


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("half", "half"),
        (mp.Policy("mixed_bfloat16"), "mixed_bfloat16"),
        (keras.DTypePolicy("mixed_float16"), "mixed_float16"),
        (mp.Policy("float16", output_dtype="float16"), "float16"),
        (
            mp.Policy("float16", "float32", "float32"),
            "params=float32,compute=float16,output=float32",
        ),
    ],
)
def test_a_policy_is_named_as_it_was_written_or_in_short(policy, text):
    rules = mp.rules.SAFE.with_policy(policy)
    assert rules.policy == text
    assert str(mp.Policy(rules.policy)) == str(mp.Policy(policy))
