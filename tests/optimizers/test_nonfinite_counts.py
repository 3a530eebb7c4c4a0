"""Tests for the counts of bad gradients, against counts known beforehand."""

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp
from tf_mixprec.optimizers import gradients as gradient_lists

# Of Keras, where a variable has none.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
    pytest.mark.slow,
]

# For each step, whether the gradients of three variables are bad.
BAD = np.array(
    [
        [True, True, False],
        [False, False, False],
        [True, False, False],
        [True, True, True],
        [False, False, False],
    ]
)
MODES = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}
IN_ALL_MODES = pytest.mark.parametrize("mode", MODES)
ON_BOTH_DEVICES = pytest.mark.parametrize(
    "device", ["cpu", "like_a_gpu"], indirect=True
)


@pytest.fixture
def device(request, monkeypatch):
    """Goes the way of GPUs, which has no branches, where it says so."""
    if request.param == "like_a_gpu":
        monkeypatch.setattr(gradient_lists, "sees_gpu", lambda: True)
    return request.param


def make_variables():
    return [
        keras.Variable(np.ones(3), dtype="float32", name="wide"),
        keras.Variable(np.ones((2, 2)), dtype="float16", name="narrow"),
        keras.Variable(np.ones(2), dtype="float32", name="unused"),
        keras.Variable(np.ones(2), dtype="float32", name="last"),
    ]


def gradients_of(bad):
    """Returns gradients of `make_variables`, bad in one element or not.

    Args:
        bad: Bool tensor of shape (3,).
    """

    def gradient(good, value):
        good = tf.constant(good)
        return [good, tf.concat([good[:-1], value * good[-1:]], axis=0)]

    pairs = [
        gradient(np.ones(3, "float32"), np.float32(np.inf)),
        gradient(np.ones((2, 2), "float16"), np.float16(np.nan)),
        gradient(np.ones(2, "float32"), np.float32(-np.inf)),
    ]
    wide, narrow, last = (
        tf.where(bad[index], spoiled, good)
        for index, (good, spoiled) in enumerate(pairs)
    )
    return [wide, narrow, None, last]


EXPECTED = {"wide": 3, "narrow": 2, "last": 1}


def counting(optimizer, variables):
    optimizer.build(variables)
    optimizer.count_nonfinite()
    return optimizer


def apply(optimizer, gradients, variables):
    optimizer.scale_loss(1.0)
    optimizer.apply(gradients, variables)


def apply_unscaled(optimizer, gradients, variables):
    optimizer.scale_loss(1.0)
    unscaled, found_inf = optimizer.unscale(gradients, variables)
    optimizer.apply_unscaled(unscaled, variables, found_inf)


def clip_and_apply(optimizer, gradients, variables):
    optimizer.scale_loss(1.0)
    optimizer.clip_and_apply(gradients, variables)


@ON_BOTH_DEVICES
@IN_ALL_MODES
@pytest.mark.parametrize("way", [apply, apply_unscaled, clip_and_apply])
def test_each_variable_has_its_count(way, mode, device):
    variables = make_variables()
    optimizer = counting(mp.wrap("adam"), variables)
    step = MODES[mode](lambda b: way(optimizer, gradients_of(b), variables))
    for row in BAD:
        step(tf.constant(row))
    assert optimizer.nonfinite_counts == EXPECTED
    assert int(optimizer.skipped_steps) == 3


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: mp.wrap("adam", jit_compile=True),
        lambda: mp.wrap("adam", skip_nonfinite=False),
        lambda: mp.wrap(keras.optimizers.SGD(global_clipnorm=1.0)),
        lambda: mp.wrap(keras.optimizers.SGD(gradient_accumulation_steps=2)),
    ],
    ids=["masked", "not_skipping", "clipping", "accumulating"],
)
def test_with_other_optimizers(make_optimizer):
    variables = make_variables()
    optimizer = counting(make_optimizer(), variables)
    step = tf.function(lambda b: apply(optimizer, gradients_of(b), variables))
    for row in BAD:
        step(tf.constant(row))
    assert optimizer.nonfinite_counts == EXPECTED


@ON_BOTH_DEVICES
@IN_ALL_MODES
def test_of_sparse_gradients(mode, device):
    table = keras.Variable(np.ones((4, 2)), dtype="float16", name="table")
    other = keras.Variable(np.ones((4, 2)), dtype="float16", name="other")
    variables = [table, other]
    optimizer = counting(mp.wrap("sgd"), variables)

    def step(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([4, 2]))
        apply(optimizer, [slices, tf.ones((4, 2), "float16")], variables)

    step = MODES[mode](step)
    large = np.full((2, 2), 4e4, "float16")
    # Of two rows, finite; of one row, whose sum is not; nan in a row.
    step(tf.constant(large), tf.constant([0, 1]))
    assert optimizer.nonfinite_counts == {}
    step(tf.constant(large), tf.constant([3, 3]))
    assert optimizer.nonfinite_counts == {"table": 1}
    step(tf.constant(large * np.nan), tf.constant([0, 1]))
    assert optimizer.nonfinite_counts == {"table": 2}
    assert int(optimizer.skipped_steps) == 2


@IN_ALL_MODES
def test_of_a_gradient_that_only_overflows_unscaled(mode):
    variables = [
        keras.Variable(np.ones(2), dtype="float32", name=name)
        for name in ("large", "small")
    ]
    optimizer = counting(
        mp.wrap("sgd", initial_scale=2.0**-10, min_scale=2.0**-10), variables
    )

    def step(value):
        gradients = [tf.fill([2], value), tf.ones(2)]
        bad = optimizer.is_bad_micro_batch(gradients, variables)
        apply(optimizer, gradients, variables)
        return bad

    step = MODES[mode](step)
    assert not step(tf.constant(2.0**100))
    assert step(tf.constant(2.0**120))  # 2**130, once it is divided
    # As a micro-batch, and in the step.
    assert optimizer.nonfinite_counts == {"large": 2}
    assert int(optimizer.skipped_steps) == 1


def skipped_at_floor(bad, floor, growth_interval, scale):
    """Yields what is counted after each step, in Python numbers."""
    skipped = good = 0
    for is_bad in bad:
        skipped = skipped + is_bad if scale == floor else 0
        good = 0 if is_bad else good + 1
        if is_bad:
            scale = max(scale / 2, floor)
        elif good == growth_interval:
            scale, good = scale * 2, 0
        yield skipped


@pytest.mark.parametrize("strategy_name", ["none", "mirrored_2"])
def test_steps_that_are_skipped_at_the_floor(strategy_name):
    numbers = {"min_scale": 2.0, "growth_interval": 2}
    bad = [1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        variables = make_variables()
        optimizer = counting(
            mp.wrap("sgd", initial_scale=8.0, **numbers), variables
        )
    step = tf.function(
        lambda value: strategy.run(
            lambda v: apply(optimizer, [v * tf.ones(3)], variables[:1]),
            args=(value,),
        )
    )
    expected = list(skipped_at_floor(bad, 2.0, 2, 8.0))
    assert {0, 1, 2} <= set(expected)
    found = []
    for is_bad in bad:
        step(tf.constant(np.nan if is_bad else 1.0, tf.float32))
        found.append(optimizer.skipped_at_floor)
    assert found == expected


def test_a_fixed_scale_is_always_at_its_floor():
    variables = make_variables()[:1]
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=8.0)
    counting(optimizer, variables)
    for value in (np.nan, 1.0, np.inf, 1.0, np.nan):
        apply(optimizer, [tf.fill([3], value)], variables)
    assert optimizer.skipped_at_floor == 3


def test_the_floor_may_move():
    variables = make_variables()[:1]
    optimizer = counting(mp.wrap("sgd", initial_scale=8.0), variables)
    step = tf.function(
        lambda v: apply(optimizer, [v * tf.ones(3)], variables),
    )
    step(tf.constant(np.nan))
    assert optimizer.skipped_at_floor == 0
    optimizer.min_scale = 4.0
    step(tf.constant(np.nan))
    assert optimizer.skipped_at_floor == 1


@strategies.SEVERAL
def test_one_replica_is_enough(strategy_name):
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        variables = make_variables()
        optimizer = counting(mp.wrap("adam"), variables)
    count = strategy.num_replicas_in_sync

    @tf.function
    def step(rows):
        strategy.run(
            lambda b: apply(optimizer, gradients_of(b), variables),
            args=(rows,),
        )

    for index, row in enumerate(BAD):
        # Of another replica in each step; the others' are finite.
        of_replicas = np.zeros((count, 3), bool)
        of_replicas[index % count] = row
        step(strategies.per_replica(strategy, of_replicas))
    assert optimizer.nonfinite_counts == EXPECTED
    counts = optimizer._nonfinite_counts._counts
    assert strategies.one_value(strategy, counts).sum() == BAD.sum()


def test_it_must_be_called_in_the_scope():
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        variables = make_variables()
        optimizer = mp.wrap("sgd")
    counting(optimizer, variables)
    with pytest.raises(ValueError, match="scope of the strategy"):
        strategy.run(
            lambda: apply(optimizer, gradients_of(np.ones(3, bool)), variables)
        )


def make_step(accumulation_steps, **options):
    """Returns a step of two branches, whose gradients are bad by themselves."""
    keras.utils.set_random_seed(1)
    inputs = [keras.Input((2,), name=name) for name in ("a", "b")]
    outputs = [
        layers.Dense(1, name=name)(x)
        for name, x in zip(("left", "right"), inputs, strict=True)
    ]
    return mp.TrainStep(
        keras.Model(inputs, layers.Concatenate()(outputs)),
        keras.optimizers.Adam(0.01),
        "mse",
        accumulation_steps=accumulation_steps,
        **options,
    )


def batch(bad):
    """Returns inputs with nan in one element, and targets.

    Args:
        bad: Bool array of shape (..., 2): whether an example is, for either
            branch.
    """
    bad = bad.reshape(-1, 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, len(bad), 2)).astype("float32")
    x[0, bad[:, 0], 0] = np.nan
    x[1, bad[:, 1], 1] = np.nan
    return list(x), rng.normal(size=(len(bad), 2)).astype("float32")


def bad_examples(parts, size):
    """Returns which examples of three batches are bad, for each branch.

    Returns:
        Bool array of shape (3, parts, size, 2).
    """
    rng = np.random.default_rng(3)
    return rng.random((3, parts, size, 2)) < [0.05, 0.2]


def expected_of_branches(bad):
    """Returns the counts, of micro-batches and branches that are bad or not."""
    left, right = bad.reshape(-1, 2).sum(axis=0)
    assert 0 < left < right
    return {
        "left/kernel": left,
        "left/bias": left,
        "right/kernel": right,
        "right/bias": right,
    }


@pytest.mark.parametrize("jit_compile", [False, True])
def test_micro_batches_count_by_themselves(jit_compile):
    batches = bad_examples(parts=4, size=2)
    step = make_step(4, jit_compile=jit_compile)
    counting(step.optimizer, step.model.trainable_variables)
    for bad in batches:
        step(*batch(bad))
    expected = expected_of_branches(batches.any(axis=2))
    assert step.optimizer.nonfinite_counts == expected
    # In each batch some micro-batch is good, so every step was made.
    assert int(step.optimizer.skipped_steps) == 0
    assert step.optimizer.skipped_at_floor == 0


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_micro_batches_of_two_replicas(accumulation_steps):
    """A micro-batch is bad if it is on either replica, and counts once."""
    batches = bad_examples(parts=2 * accumulation_steps, size=2)
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        step = make_step(accumulation_steps, jit_compile=False)
        counting(step.optimizer, step.model.trainable_variables)
    for bad in batches:
        step(*batch(bad))
    # Replicas take halves of a batch, and cut these.
    parts = batches.reshape(3, 2, accumulation_steps, 2, 2)
    expected = expected_of_branches(parts.any(axis=(1, 3)))
    assert step.optimizer.nonfinite_counts == expected


@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_counting_changes_nothing_else(accumulation_steps):
    batches = bad_examples(parts=4, size=2)
    results = []
    for counts in (False, True):
        step = make_step(accumulation_steps)
        if counts:
            counting(step.optimizer, step.model.trainable_variables)
        for bad in batches:
            step(*batch(bad))
        step(*batch(np.zeros_like(bad)))
        results.append(
            [
                np.asarray(v)
                for v in [*step.model.weights, *step.optimizer.variables]
            ]
        )
    for without, with_counts in zip(*results, strict=True):
        np.testing.assert_array_equal(without, with_counts)


def test_steps_traced_earlier_do_not_count():
    variables = make_variables()
    optimizer = mp.wrap("sgd")
    optimizer.build(variables)
    bad = tf.constant([True, False, False])

    def step(bad):
        apply(optimizer, gradients_of(bad), variables)

    early = tf.function(step)
    early(bad)
    assert optimizer.nonfinite_counts == {}
    optimizer.count_nonfinite()
    early(bad)
    assert optimizer.nonfinite_counts == {}
    tf.function(step)(bad)
    assert optimizer.nonfinite_counts == {"wide": 1}


def test_a_second_call_starts_again():
    variables = make_variables()
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=8.0)
    counting(optimizer, variables)
    bad = tf.constant([True, False, False])
    step = tf.function(lambda: apply(optimizer, gradients_of(bad), variables))
    step()
    assert optimizer.nonfinite_counts == {"wide": 1}
    optimizer.count_nonfinite()
    assert optimizer.nonfinite_counts == {}
    assert optimizer.skipped_at_floor == 0
    step()
    assert optimizer.nonfinite_counts == {"wide": 1}
    assert optimizer.skipped_at_floor == 1


def test_without_it_nothing_is_counted():
    variables = make_variables()
    optimizer = mp.wrap("sgd", dynamic=False)
    apply(optimizer, gradients_of(np.ones(3, bool)), variables)
    assert int(optimizer.skipped_steps) == 1
    assert optimizer.nonfinite_counts == {}
    assert optimizer.skipped_at_floor == 0


def test_the_counts_are_no_state_of_the_optimizer():
    """Checkpoints stay the same."""
    variables = make_variables()
    optimizer = mp.wrap("sgd")
    optimizer.build(variables)
    before = [v.path for v in optimizer.variables]
    optimizer.count_nonfinite()
    assert [v.path for v in optimizer.variables] == before


def test_variables_of_one_name_are_told_apart():
    variables = [
        *(keras.Variable(np.ones(2), name="kernel") for _ in range(2)),
        tf.Variable([1.0, 2.0], name="raw"),
    ]
    optimizer = counting(mp.wrap("sgd"), variables)
    good, bad = tf.ones(2), tf.fill([2], np.nan)
    apply(optimizer, [good, bad, good], variables)
    apply(optimizer, [bad, bad, bad], variables)
    assert optimizer.nonfinite_counts == {
        "kernel": 1,
        "kernel (2)": 2,
        "raw:0": 1,
    }
