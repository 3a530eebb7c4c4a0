"""Tests for `mp.profile`: what it counts, and what it makes of times."""

import dataclasses
import doctest
import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_mixprec as mp
from tf_mixprec.diagnostics.profile import findings as profile_findings
from tf_mixprec.diagnostics.profile import measuring as profile_measuring
from tf_mixprec.diagnostics.profile import ops as profile_ops
from tf_mixprec.diagnostics.profile import steps as profile_steps
from tf_mixprec.diagnostics.profile import timing as profile_timing
from tf_mixprec.diagnostics.profile.graph import dtypes_by_name
from tf_mixprec.diagnostics.profile.graph import graph_facts
from tf_mixprec.diagnostics.profile.records import BatchTime
from tf_mixprec.diagnostics.profile.records import GraphFacts
from tf_mixprec.diagnostics.profile.records import Measured
from tf_mixprec.diagnostics.profile.records import OpTimes
from tf_mixprec.diagnostics.profile.records import Variant
from tf_mixprec.diagnostics.profile.steps import AS_IT_IS
from tf_mixprec.diagnostics.profile.steps import ProfiledSteps
from tf_mixprec.policies import matrix_timing

BATCH = 6


@pytest.fixture(autouse=True)
def _made_up_ceiling(monkeypatch):
    """A thousand multiply-adds a millisecond, in 16 bits twice as many."""
    times = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}
    monkeypatch.setattr(
        matrix_timing,
        "measure",
        lambda device: matrix_timing.MatrixTimes(10, times),
    )


def facts_of(function, *shapes):
    specs = [tf.TensorSpec(shape) for shape in shapes]
    traced = tf.function(function, autograph=False)
    return graph_facts(traced.get_concrete_function(*specs))


def test_operations_are_counted_by_hand():
    def function(a, b):
        narrow = [tf.cast(each, tf.bfloat16) for each in (a, b)]
        product = tf.matmul(*narrow)  # of bfloat16, as the casts are
        unused = tf.exp(product) + 1.0
        del unused
        return tf.cast(product, tf.float32) * 2.0 + 1.0

    facts = facts_of(function, (3, 4), (4, 5))
    assert facts.ops == {"bfloat16": 3, "float32": 3}
    assert facts.casts == 3
    # A float32 and a bfloat16 for each element.
    assert facts.cast_bytes == (3 * 4 + 4 * 5 + 3 * 5) * (4 + 2)
    assert facts.multiply_adds == {"bfloat16": 3 * 4 * 5}
    assert facts.unknown_products == 0


def test_a_loop_counts_its_turns():
    def function(a):
        def body(i, value):
            return i + 1, tf.matmul(value, tf.cast(a, tf.float32))

        _, value = tf.while_loop(
            lambda i, _: i < 7, body, [0, a], maximum_iterations=7
        )
        return value

    facts = facts_of(function, (3, 3))
    assert facts.multiply_adds == {"float32": 7 * 27}
    assert facts.ops == {"float32": 1}  # a cast to the same dtype is none


def test_a_loop_of_unknown_length_is_said():
    def function(a):
        return tf.while_loop(
            lambda value: tf.reduce_sum(value) < 7.0,
            lambda value: (tf.matmul(value, value),),
            [a],
        )

    facts = facts_of(function, (3, 3))
    assert facts.multiply_adds == {"float32": 0}
    assert facts.unknown_products == 1


def test_functions_that_are_called_count_each_time():
    @tf.function(autograph=False)
    def inner(a):
        return tf.matmul(a, a)

    facts = facts_of(lambda a: inner(inner(a)), (3, 3))
    assert facts.multiply_adds == {"float32": 2 * 27}


def dense():
    # Forward and for the kernel; of the second also for its inputs.
    count = BATCH * (2 * 4 * 8 + 3 * 8 * 2)
    return [keras.Input((4,)), layers.Dense(8), layers.Dense(2)], count


def convolutions():
    size = 5 * 5  # of 7 x 7 without padding
    first = BATCH * size * 3 * 3 * 2 * 4
    # In groups of 2 of 4 channels each, and with a stride.
    second = BATCH * 3 * 3 * 3 * 3 * 2 * 6
    third = BATCH * 2 * 2 * 2 * 2 * 6  # depth by depth
    stack = [
        keras.Input((7, 7, 2)),
        layers.Conv2D(4, 3),
        layers.Conv2D(6, 3, strides=2, padding="same", groups=2),
        layers.DepthwiseConv2D(2),
    ]
    return stack, 2 * first + 3 * second + 3 * third


def recurrence():
    steps, features, units = 5, 3, 4
    gates = 4
    inputs = steps * BATCH * features * gates * units
    recurrent = steps * BATCH * units * gates * units
    stack = [keras.Input((steps, features)), layers.LSTM(units)]
    # Nobody asks for the gradient of the inputs.
    return stack, 2 * inputs + 3 * recurrent


def attention():
    length, features, heads, size = 5, 6, 2, 3
    inputs = keras.Input((length, features))
    outputs = layers.MultiHeadAttention(heads, size)(inputs, inputs)
    projections = BATCH * length * features * heads * size
    scores = BATCH * heads * length * length * size
    # Query, key and value come from inputs, the last product does not.
    count = 3 * 2 * projections + 2 * 3 * scores + 3 * projections
    return keras.Model(inputs, outputs), count


def variants_of(model, *policies, loss="mse", optimizer="sgd"):
    x = tf.random.normal((BATCH, *model.input_shape[1:]))
    y = tf.zeros((BATCH, *model.output_shape[1:]))
    return [
        ProfiledSteps(model, policy, (x, y, None), loss, optimizer, False)
        for policy in policies
    ]


@pytest.mark.parametrize("make", [dense, convolutions, recurrence, attention])
def test_multiply_adds_of_layers(make):
    model, count = make()
    if isinstance(model, list):
        model = keras.Sequential(model)
    everywhere = mp.PrecisionRules([], "mixed_bfloat16")
    plain, converted = variants_of(model, AS_IT_IS, everywhere)
    assert plain.graph.multiply_adds == {"float32": count}
    assert converted.graph.multiply_adds == {"bfloat16": count}
    for each in (plain, converted):
        assert each.graph.unknown_products == 0
    assert plain.graph.casts == 0
    assert converted.graph.casts > 0


def test_every_part_is_called_in_its_precision():
    model = keras.Sequential(dense()[0])
    (steps,) = variants_of(model, "mixed_float16")
    assert steps.graph.multiply_adds == {
        # The last layer stays in float32.
        "float16": BATCH * 2 * 4 * 8,
        "float32": BATCH * 3 * 8 * 2,
    }
    calls = steps.calls()
    scaled = float(calls["forward"]())
    gradients = calls["backward"]()
    assert len(gradients) == 4
    logs = calls["step"]()
    assert not bool(logs["skipped"])
    # The loss is scaled, and steps move no weight.
    assert scaled == float(logs["loss"]) * float(logs["loss_scale"])


def test_skipped_steps_are_not_timed():
    """At first the loss scale is too high for float16."""
    model = keras.Sequential(dense()[0])
    optimizer = mp.wrap("sgd", initial_scale=2.0**24)
    (steps,) = variants_of(model, "mixed_float16", optimizer=optimizer)
    assert not bool(steps.calls()["step"]()["skipped"])
    assert int(optimizer.skipped_steps) == 0


def small():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, name="hidden"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(3, activation="softmax", name="head"),
        ],
        name="small",
    )
    x = np.random.default_rng(0).normal(size=(20, 4))
    return model, x, np.arange(20) % 3


QUICK = {"rounds": 3, "seconds": 0.0, "jit_compile": False}


def test_the_model_stays_as_it_is():
    model, x, y = small()
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    )
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x, y, verbose=0)
    before = [v.numpy().copy() for v in (*model.weights, *optimizer.variables)]
    parts = {**vars(model)}
    paths = [v.path for v in model.weights]
    found = mp.profile(model, x, y, batch_size=8, **QUICK)
    assert [v.path for v in model.weights] == paths
    after = [v.numpy() for v in (*model.weights, *optimizer.variables)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    for name, value in parts.items():
        assert vars(model)[name] is value, name
    assert found.model == "small"
    assert found.current == 0
    labels = [each.label for each in found.variants]
    assert labels[0] == "float32"
    assert labels[1].startswith("mixed_")


def test_a_model_in_16_bits_is_the_second():
    model, x, y = small()
    model = mp.convert(model, "mixed_bfloat16")
    mp.compile(model, "adam", "sparse_categorical_crossentropy")
    found = mp.profile(model, x, y, batch_size=8, **QUICK)
    assert [each.label for each in found.variants] == ["float32", "as it is"]
    assert found.current == 1
    first, second = found.variants
    assert set(first.graph.ops) == {"float32"}
    assert "bfloat16" in second.graph.ops
    assert second.graph.casts > 0


def test_the_record_is_plain_and_shown():
    model, x, y = small()
    found = mp.profile(
        model,
        x,
        y,
        loss="sparse_categorical_crossentropy",
        optimizer=keras.optimizers.SGD(0.1),
        policies=["mixed_bfloat16", mp.rules.SAFE.with_policy("float32")],
        batch_size=4,
        batch_sizes=[2, 32],
        **QUICK,
    )
    assert [b.batch_size for b in found.batches] == [2, 4, 32]
    for each in found.batches:
        rate = each.batch_size / each.step_ms * 1000
        assert each.examples_per_second == rate
    assert found.ceiling == {
        "float32": 1e6,
        "bfloat16": 2e6,
        "float16": 2e6,
    }
    for each in found.variants:
        by_hand = sum(
            count / found.ceiling[dtype] * 1000
            for dtype, count in each.graph.multiply_adds.items()
        )
        assert each.ceiling_ms == by_hand
    assert "batch-statistics" in {each.code for each in found.findings}
    fields = json.loads(found.to_json())
    assert fields["variants"][0]["policy"] == "mixed_bfloat16"
    document = found.document()
    figures = [b for b in document.blocks if type(b).__name__ == "Bars"]
    assert len(figures) >= 3
    text = str(found)
    assert text.index(found.verdict[:20]) < text.index("Time of a training")
    for title in ("Parts of a step", "Casts", "Multiply-adds", "Batches of"):
        assert title in text


@pytest.mark.slow
def test_xla_is_tried_the_other_way():
    model, x, y = small()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    found = mp.profile(model, x, y, batch_size=8, rounds=3, seconds=0.0)
    places = [(each.policy, each.jit_compile) for each in found.variants]
    assert places[0] == ("float32", False)
    assert places[-1] == ("float32", True)
    assert len(places) == 3
    assert found.variants[-1].op_times is None


@pytest.mark.parametrize("rounds", [3, 6])
def test_rounds_trace_nothing(rounds):
    """A function for each part; that of the step for batches of any size."""
    traces = []

    def loss(y, prediction):
        traces.append(y.shape[0])
        return keras.ops.mean(keras.ops.square(y - prediction), axis=-1)

    model = keras.Sequential(dense()[0])
    x, y = np.ones((8, 4)), np.ones((8, 2))
    mp.profile(
        model,
        x,
        y,
        loss=loss,
        policies=["float32"],
        batch_size=8,
        batch_sizes=[4, 2],
        jit_compile=False,
        rounds=rounds,
        seconds=60.0,
    )
    # First of all Keras calls the loss on symbols, to make its variables.
    assert traces[1:] == [None, 8, 8]


def test_every_call_is_timed_once_a_round(monkeypatch):
    calls, now = [], [0.0]

    def taking(name, seconds):
        def call():
            calls.append(name)
            now[0] += seconds

        return call

    monkeypatch.setattr(profile_timing.time, "perf_counter", lambda: now[0])
    named = {"a": taking("a", 1.0), "b": taking("b", 3.0)}
    times = profile_timing.interleaved(named, 10, 15.0)
    # After 16 seconds, four rounds, it is enough.
    assert times == {"a": [1000.0] * 4, "b": [3000.0] * 4}
    rounds = [tuple(calls[i : i + 2]) for i in range(0, 8, 2)]
    assert set(rounds) <= {("a", "b"), ("b", "a")}
    assert len(profile_timing.interleaved(named, 10, 0.0)["a"]) == 3
    assert len(profile_timing.interleaved(named, 2, 99.0)["a"]) == 2


def test_ratios_are_of_the_same_round():
    ratio = profile_timing.ratio([2.0, 30.0, 1.0], [1.0, 10.0, 2.0])
    assert ratio.median == 2.0
    np.testing.assert_allclose(
        (ratio.p10, ratio.p90), np.quantile([2.0, 3.0, 0.5], (0.1, 0.9))
    )


def test_differences_are_of_the_same_round():
    # The medians are 10 and 9; in the rounds it is 2, 1 and 2.
    assert profile_timing.difference([10, 3, 90], [8, 2, 88]) == 2
    assert profile_timing.difference([1.0, 1.0, 5.0], [2.0, 1.5, 0.0]) == -0.5


def test_what_is_below_the_noise_is_said():
    times = {
        (0, profile_steps.FORWARD): [2.0, 2.0, 9.0],
        (0, profile_steps.BACKWARD): [1.5, 1.0, 9.5],
        (0, profile_steps.STEP): [2.5, 3.0, 9.0],
    }

    class Steps:
        label, jit_compile, traced = "float32", True, None
        graph = NO_CASTS

    noisy = profile_measuring._variant(Steps(), 0, times, {}, None)
    assert (noisy.backward_ms, noisy.optimizer_ms) == (0.0, 1.0)
    assert noisy.below_noise == ("backward",)
    found = profile_findings.findings(measured(noisy))
    (below,) = [each for each in found if each.code == "below-noise"]
    assert below.level == "info"
    assert "backward in float32" in below.what
    quiet = dataclasses.replace(noisy, below_noise=())
    assert "below-noise" not in codes(measured(quiet))


def test_batches_of_another_size_repeat_examples():
    batch = (tf.range(3), {"a": tf.range(3) * 10}, None)
    x, y, weight = profile_measuring.of_size(batch, 7)
    assert x.numpy().tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert y["a"].numpy().tolist() == [0, 10, 20, 0, 10, 20, 0]
    assert weight is None


def test_events_are_summed_by_dtype():
    events = [
        ("dense/MatMul:_MklMatMul", 4.0),
        ("PartitionedCall/dense/MatMul:MatMul", 2.0),
        ("dense/Cast:Cast", 3.0),
        ("new:Mul", 1.0),
        ("EagerExecute", 99.0),
        ("EagerLocalExecute: __inference_f_36", 99.0),
    ]
    dtypes = {"dense/MatMul": "bfloat16", "dense/Cast": "float32"}
    found = profile_ops.summed(events, dtypes, 2)
    assert found.milliseconds == {"bfloat16": 3.0, "float32": 1.5, "other": 0.5}
    assert found.cast_share == 0.3
    assert profile_ops.summed(events[-2:], dtypes, 2) is None


def test_the_profiler_knows_the_operations():
    @tf.function(autograph=False)
    def function(x):
        return tf.reduce_sum(tf.matmul(tf.cast(x, tf.bfloat16), x_narrow))

    x_narrow = tf.ones((64, 64), tf.bfloat16)
    x = tf.ones((64, 64))
    traced = function.get_concrete_function(x)
    found = profile_ops.op_times(lambda: function(x), dtypes_by_name(traced))
    if found is None:
        pytest.skip("TensorFlow's profiler says nothing here")
    assert found.milliseconds["bfloat16"] > 0
    assert 0 < found.cast_share < 1


NO_CASTS = GraphFacts(
    ops={"float32": 10},
    casts=0,
    cast_bytes=0,
    multiply_adds={"float32": 1000},
    unknown_products=0,
)
NARROW = dataclasses.replace(
    NO_CASTS, ops={"bfloat16": 10, "float32": 2}, casts=4, cast_bytes=2**20
)


def variant(policy, ratio, *, jit=False, graph=None, casts=None, **parts):
    step = ratio * 10.0
    optimizer = parts.get("optimizer", 0.1) * step
    op_times = None
    if casts is not None:
        op_times = OpTimes(milliseconds={"float32": 1.0}, cast_share=casts)
    return Variant(
        policy=policy,
        jit_compile=jit,
        step_ms=step,
        ratio=ratio,
        ratio_p10=ratio - 0.05,
        ratio_p90=ratio + 0.05,
        forward_ms=(step - optimizer) / 2,
        backward_ms=(step - optimizer) / 2,
        optimizer_ms=optimizer,
        graph=graph or (NO_CASTS if policy == "float32" else NARROW),
        op_times=op_times,
        ceiling_ms=parts.get("ceiling"),
    )


def measured(*variants, current=0, **fields):
    return Measured(variants=variants, current=current, batch_size=32, **fields)


def codes(record):
    return [each.code for each in profile_findings.findings(record)]


def changes(record):
    return {
        each.finding.code: round(each.left, 6)
        for each in profile_findings.changes(record)
    }


def test_a_faster_policy():
    record = measured(variant("float32", 1.0), variant("mixed_bfloat16", 0.74))
    (finding,) = profile_findings.findings(record)
    assert (finding.code, finding.level) == ("policy", "warning")
    assert finding.value == 0.74
    assert finding.what == ("A step in mixed_bfloat16 takes 0.74 of the time.")
    assert finding.remedy == "Train in mixed_bfloat16."
    assert profile_findings.verdict(record) == (
        "mixed_bfloat16 takes 0.74 of the time of float32 (0.69 to 0.79). "
        "First of all: Train in mixed_bfloat16."
    )


def test_a_policy_that_gains_nothing_says_why():
    record = measured(
        variant("float32", 1.0, optimizer=0.4, ceiling=2.0),
        variant("mixed_bfloat16", 1.1, casts=0.26),
    )
    assert codes(record) == ["optimizer", "not-faster", "ceiling"]
    finding = profile_findings.findings(record)[1]
    assert finding.why == (
        "Casts are 26% of the time of its operations; the optimizer, which "
        "works in float32, is 40% of the step in float32; matrix products, "
        "which 16 bits make faster, need be no more than 0.2 of it."
    )


def test_back_to_float32():
    record = measured(
        variant("float32", 1.0), variant("as it is", 1.25), current=1
    )
    assert changes(record) == {"policy": 0.8}
    (first, *_) = profile_findings.findings(record)
    assert first.remedy == "Train in float32."


def test_xla_off_and_on():
    record = measured(
        variant("float32", 1.0, jit=True),
        variant("float32", 0.83),
    )
    (change,) = profile_findings.changes(record)
    assert change.left == 0.83
    assert change.finding.remedy == "Turn XLA off (`jit_compile`)."
    record = measured(
        variant("float32", 1.0), variant("float32", 0.9, jit=True)
    )
    (change,) = profile_findings.changes(record)
    assert change.finding.level == "info"
    assert change.finding.remedy == "Turn XLA on (`jit_compile`)."


def test_a_policy_that_only_pays_without_xla():
    record = measured(
        variant("float32", 1.0, jit=True),
        variant("mixed_bfloat16", 1.2, jit=True),
        variant("mixed_bfloat16", 0.7),
    )
    assert changes(record) == {"policy-and-xla": 0.7}


def test_casts_and_the_optimizer():
    record = measured(
        variant("float32", 1.0),
        variant("as it is", 0.8, casts=0.125, optimizer=0.45),
        current=1,
    )
    assert changes(record) == {"optimizer": 0.55, "casts": 0.875}
    casts = profile_findings.findings(record)[1]
    assert casts.what == "Casts are 12% of the time of the operations."
    assert "4 to or from 16 bits, of 1 MiB" in casts.why


def batch(size, per_second, ceiling=None):
    return BatchTime(
        batch_size=size,
        step_ms=size / per_second * 1000,
        examples_per_second=per_second,
        ceiling_share=ceiling,
    )


def test_a_larger_batch():
    record = measured(
        variant("float32", 1.0),
        batches=(batch(32, 3000.0, 0.3), batch(256, 8000.0, 0.8)),
    )
    assert changes(record) == {"batch": 0.375}
    (finding,) = profile_findings.findings(record)
    assert finding.why == (
        "A batch of 32 reaches 0.3 of the speed of large matrix products, one "
        "of 256 reaches 0.8."
    )


def test_batch_statistics_change_with_the_batch():
    record = measured(
        variant("float32", 1.0),
        batches=(batch(32, 100.0), batch(64, 100.0)),
        batch_statistics=("a/norm", "b/norm"),
    )
    (finding,) = profile_findings.findings(record)
    assert (finding.code, finding.level) == ("batch-statistics", "warning")
    assert "a/norm, b/norm" in finding.what
    assert codes(dataclasses.replace(record, batches=())) == []


def test_three_changes_in_order():
    record = measured(
        variant("float32", 1.0, casts=0.08, optimizer=0.3, ceiling=1.0),
        variant("mixed_bfloat16", 0.5, ceiling=0.5),
        variant("float32", 0.8, jit=True),
        batches=(batch(32, 60.0), batch(64, 100.0)),
    )
    assert list(changes(record)) == ["policy", "batch", "optimizer"]
    assert codes(record) == ["policy", "batch", "optimizer", "ceiling"]


def test_noise_is_no_change():
    uncertain = dataclasses.replace(variant("other", 0.9), ratio_p90=1.02)
    assert codes(measured(variant("float32", 1.0), uncertain)) == []
    uncertain = dataclasses.replace(variant("as it is", 1.2), ratio_p10=0.98)
    assert (
        changes(measured(variant("float32", 1.0), uncertain, current=1)) == {}
    )
    record = measured(
        variant("float32", 1.0), variant("float32", 0.97, jit=True)
    )
    assert codes(record) == []
    assert profile_findings.verdict(record).endswith(
        "There is nothing that would make it much faster."
    )


def test_one_variant():
    record = measured(variant("float32", 1.0))
    assert profile_findings.verdict(record).startswith(
        "A step in float32 takes 10 ms."
    )


def test_ceilings_of_unknown_dtypes_are_unknown():
    counts = {"float32": 10, "bfloat16": 10}
    ceiling = {"float32": 1000.0, "bfloat16": 2000.0}
    assert profile_measuring.ceiling_ms(counts, ceiling) == 15.0
    assert profile_measuring.ceiling_ms({"float64": 1}, ceiling) is None
    assert profile_measuring.ceiling_ms({}, ceiling) is None


def compiled():
    model, x, y = small()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, x, y


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rounds": 0}, ValueError, "`rounds` must be at least 1"),
        ({"rounds": 1.5}, TypeError, "`rounds` must be an int"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"batch_sizes": [0]}, ValueError, "`batch_sizes` must be at least"),
        ({"seconds": -1}, ValueError, "`seconds` must not be below 0"),
        ({"seconds": "1"}, TypeError, "`seconds` must be a float"),
        ({"policies": []}, ValueError, "`policies` must be a list"),
        ({"policies": "float32"}, ValueError, "`policies` must be a list"),
    ],
)
def test_wrong_arguments_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        mp.profile(*compiled(), **options)


def test_wrong_models_are_refused():
    model, x, y = small()
    with pytest.raises(ValueError, match="`model` must be compiled, or `loss`"):
        mp.profile(model, x, y)
    with pytest.raises(TypeError, match="`model` must be a `keras.Model`"):
        mp.profile(model.layers[0], x, y)
    mp.compile(
        model, "sgd", "sparse_categorical_crossentropy", autocast="bfloat16"
    )
    with pytest.raises(ValueError, match="compile it without `autocast`"):
        mp.profile(model, x, y)


def test_a_model_without_a_config_is_refused_and_not_changed():
    class Own(keras.Model):
        def __init__(self, size):
            super().__init__()
            self.dense = layers.Dense(size)

        def call(self, x):
            return self.dense(x)

    model = Own(2)
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    model(x)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="has a copy with|from its config"):
        mp.profile(model, x, y, policies=["mixed_bfloat16"])
    assert model.dense.dtype_policy.name == "float32"
    with pytest.raises(ValueError, match="has a copy with|from its config"):
        mp.profile(model, x, y, policies=[AS_IT_IS])


def test_a_copy_has_the_functions_of_the_model():
    """Keras refuses to make a `Lambda` from its config alone."""
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2), layers.Lambda(lambda x: 2.0 * x)]
    )
    copy = profile_steps._copy(model, AS_IT_IS)
    x = np.ones((4, 3), "float32")
    np.testing.assert_array_equal(copy(x), model(x))
    assert copy.layers[0].kernel is not model.layers[0].kernel


def test_a_step_is_profiled_as_its_model():
    class OwnLoss(mp.TrainStep):
        def compute_loss(self, model, batch):
            return tf.reduce_mean(model(batch[0]))

    model, x, y = small()
    loss = "sparse_categorical_crossentropy"
    step = mp.TrainStep(model, "sgd", loss, accumulation_steps=2)
    options = {"policies": ["float32"], "batch_size": 8, **QUICK}
    found = mp.profile(step, x, y, **options)
    assert (found.model, found.current) == ("small", 0)
    own = OwnLoss(model, "sgd")
    with pytest.raises(ValueError, match="`loss` must be given for a step"):
        mp.profile(own, x, y)


def test_the_example_runs():
    failures, count = doctest.testmod(inspect.getmodule(mp.profile))
    assert (failures, count > 0) == (0, True)
