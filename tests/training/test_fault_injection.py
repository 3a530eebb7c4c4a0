"""Random faults: nothing but the loss scale may know that they were there.

A fault is inf, nan or a number that overflows, added to an input, a layer's
output, a target, or to the gradient of a layer's output or of any variable: in
one example of a random batch, so in one micro-batch on one replica. Each run is
compared with one that has the good batches only. `TF_MIXPREC_FAULT_SEED` sets
another seed than 0. The slow tests together inject more than 2,000 faults.
"""

import itertools
import os

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp

SEED = int(os.environ.get("TF_MIXPREC_FAULT_SEED", "0"))
BATCH, FEATURES = 8, 6
VARIABLES = ["kernel", "bias", "gamma", "beta", "kernel_1", "bias_1"]
FORWARD = ["input", "hidden", "output"]
BACKWARD = ["hidden_gradient", "output_gradient"]
SITES = [*FORWARD, *BACKWARD, *VARIABLES]
FAULTS = [np.nan, np.inf, -np.inf]
HUGE = 3e38


@tf.custom_gradient
def with_faulty_gradient(x, fault):
    """Returns `x`; its gradient gets the fault added."""

    def backward(gradient):
        return gradient + tf.cast(fault, gradient.dtype), None

    return tf.identity(x), backward


@tf.custom_gradient
def zero_with_gradient(weight, fault):
    """Returns 0, whose gradient with respect to the weight is the fault."""

    def backward(gradient):
        return tf.fill(tf.shape(weight), tf.cast(fault, weight.dtype)), None

    return tf.zeros((), tf.float32), backward


class Faulty(keras.Model):
    """A small network with a place for each fault.

    Inputs are `(x, faults)`, of which the latter has a column for each site.
    """

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8)
        self.norm = layers.BatchNormalization(momentum=0.5)
        self.head = layers.Dense(2, dtype="float32")

    def build(self, shapes):
        self.hidden.build((None, FEATURES))
        self.norm.build((None, 8))
        self.head.build((None, 8))

    def call(self, inputs, training=False):
        x, faults = inputs
        column = {
            name: tf.cast(faults[:, i : i + 1], tf.float32)
            for i, name in enumerate(SITES)
        }

        def added(x, name):
            return x + tf.cast(column[name], x.dtype)

        x = self.hidden(added(tf.cast(x, tf.float32), "input"))
        x = with_faulty_gradient(added(x, "hidden"), column["hidden_gradient"])
        x = tf.nn.relu(self.norm(x, training=training))
        x = added(self.head(x), "output")
        x = with_faulty_gradient(x, column["output_gradient"])
        for name, variable in zip(
            VARIABLES, self.trainable_variables, strict=True
        ):
            fault = tf.reduce_sum(column[name])
            x = x + zero_with_gradient(variable.value, fault)
        return x


def make_model(policy):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        model = Faulty()
    model.autocast = False  # a fault is not to be cast on its way in
    model.build(None)
    return model


class Plan:
    """Random batches, of which some have a fault.

    Args:
        count: Number of faults.
        policy: The policy of the model.
        parts: Into how many parts, of equal size, a batch is cut: one for each
            replica and micro-batch.
    """

    def __init__(self, count, policy, parts=1):
        self.random = np.random.default_rng(SEED)
        self.policy = policy
        self.size = BATCH * parts
        bad = self.random.permutation(np.repeat([True, False], count))
        self.steps = [self.step(is_bad) for is_bad in bad]

    def step(self, is_bad):
        """Returns x, faults, y, and the example with the fault or `None`."""
        x = self.random.normal(size=(self.size, FEATURES)).astype("float32")
        y = x[:, :2].copy()
        faults = np.zeros((self.size, len(SITES)), "float32")
        if not is_bad:
            return x, faults, y, None
        row = self.random.integers(self.size)
        site = self.random.choice([*SITES, "target"])
        kinds = list(FAULTS)
        # What float32 holds is no fault: there a large gradient is a gradient.
        overflows = ["output", "target"]
        if self.policy == "mixed_float16":
            overflows += ["input", "hidden", "hidden_gradient"]
        if site in overflows:
            kinds.append(HUGE)
        kind = self.random.choice(kinds)
        if site == "target":
            y[row] += kind
        else:
            faults[row, SITES.index(site)] = kind
        return x, faults, y, row


def optimizer(policy):
    """A fixed scale where float16 rounds with it, and else a dynamic one."""
    inner = keras.optimizers.Adam(0.01)
    if policy == "mixed_float16":
        return mp.wrap(inner, dynamic=False, initial_scale=16.0)
    return mp.wrap(inner, initial_scale=16.0, growth_interval=3)


def make_step(policy, strategy=None, **options):
    with (strategy or strategies.NoStrategy()).scope():
        return mp.TrainStep(
            make_model(policy),
            optimizer(policy),
            "mse",
            metrics=["mae"],
            jit_compile=options.pop("jit_compile", False),
            **options,
        )


def state(model):
    inner = model.optimizer.inner_optimizer
    variables = [*model.weights, *inner.variables, *model.metrics_variables]
    return [keras.ops.convert_to_numpy(v) for v in variables]


def check_equal(a, b):
    for x, y in zip(a, b, strict=True):
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(x, y)


def expected_scales(steps):
    """The loss scale after each step, by the pure rule."""
    rule = mp.DynamicLossScale(initial_scale=16.0, growth_interval=3)
    now = rule.initial_state()
    for *_, row in steps:
        now = mp.next_state(now, row is not None, rule)
        yield float(now.loss_scale)


COUNTS = [
    pytest.param(20, id=f"20-seed-{SEED}"),
    pytest.param(400, id=f"400-seed-{SEED}", marks=pytest.mark.slow),
]
CASES = [
    ("float32", "none", False),
    ("mixed_float16", "none", False),
    ("mixed_bfloat16", "mirrored_2", False),
    ("mixed_float16", "none", True),
]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("policy", "strategy_name", "jit_compile"),
    [
        pytest.param(*case, marks=[] if i == 1 else pytest.mark.slow)
        for i, case in enumerate(CASES)
    ],
)
def test_steps(policy, strategy_name, jit_compile, count):
    """Each bad one changes nothing; the others as if it had not been."""
    strategy = strategies.make(strategy_name)
    replicas = strategy.num_replicas_in_sync
    plan = Plan(count, policy, replicas)
    step = make_step(policy, strategy, jit_compile=jit_compile)
    reference = make_step(policy, strategy, jit_compile=jit_compile)
    scales = list(expected_scales(plan.steps))
    before = None
    for (x, faults, y, row), scale in zip(plan.steps, scales, strict=True):
        logs = step((x, faults), y)
        assert bool(logs["skipped"]) == (row is not None)
        if row is None:
            reference((x, faults), y)
            before = state(step.model)
        elif before is not None:
            check_equal(state(step.model), before)
        if policy != "mixed_float16":
            assert float(logs["loss_scale"]) == scale
    check_equal(state(step.model), state(reference.model))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", pytest.param("float32", marks=pytest.mark.slow)],
)
def test_fit_of_mp_compile(policy, count):
    plan = Plan(count, policy)
    results = []
    for steps in (plan.steps, [s for s in plan.steps if s[-1] is None]):
        model = make_model(policy)
        mp.compile(
            model,
            optimizer(policy),
            "mse",
            metrics=["mae"],
            safe_skip=True,
            jit_compile=False,
        )
        x, faults, y = (
            np.concatenate([step[i] for step in steps]) for i in range(3)
        )
        history = model.fit(
            (x, faults),
            y,
            batch_size=BATCH,
            shuffle=False,
            epochs=2,
            verbose=0,
        ).history
        results.append((state(model), history, model))
    (given, history, model), (expected, expected_history, _) = results
    check_equal(given, expected)
    assert history == expected_history
    assert int(model.optimizer.skipped_steps) == 2 * count


class Oracle:
    """The step by hand: good micro-batches in eager code, one by one.

    Args:
        policy: The policy of the model.
        parts: Into how many micro-batches a batch is cut.
    """

    def __init__(self, policy, parts):
        self.model = make_model(policy)
        self.parts = parts
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)

    @tf.function(jit_compile=False)
    def gradients(self, x, faults, y, scale):
        with tf.GradientTape() as tape:
            y_pred = self.model((x, faults), training=True)
            loss = keras.losses.MeanSquaredError()(y, y_pred) * scale
        return tape.gradient(loss, self.model.trainable_variables)

    def step(self, x, faults, y, row):
        total, good = None, 0
        scale = 16.0 / 2 ** int(np.log2(self.parts))
        for k in range(self.parts):
            rows = slice(k * BATCH, (k + 1) * BATCH)
            if row is not None and rows.start <= row < rows.stop:
                continue
            gradients = self.gradients(x[rows], faults[rows], y[rows], scale)
            total = (
                gradients
                if total is None
                else [a + b for a, b in zip(total, gradients, strict=True)]
            )
            good += 1
        factor = np.float32(1) / np.float32(scale * good)
        self.optimizer.apply([g * factor for g in total])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", pytest.param("float32", marks=pytest.mark.slow)],
)
def test_micro_batches(policy, count):
    """A bad one is left out, and the step is that of the others."""
    parts = 4
    plan = Plan(count, policy, parts)
    step = mp.TrainStep(
        make_model(policy),
        mp.wrap(keras.optimizers.Adam(0.01), dynamic=False, initial_scale=16.0),
        "mse",
        accumulation_steps=parts,
        jit_compile=False,
    )
    oracle = Oracle(policy, parts)
    for x, faults, y, row in plan.steps:
        logs = step((x, faults), y)
        assert not bool(logs["skipped"])
        found_inf = bool(step.optimizer.found_inf.numpy())
        assert found_inf == (row is not None)
        oracle.step(x, faults, y, row)
    for a, b in itertools.chain(
        zip(step.model.weights, oracle.model.weights, strict=True),
        zip(
            step.optimizer.inner_optimizer.variables,
            oracle.optimizer.variables,
            strict=True,
        ),
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), a.path)
