"""Tests for `tf_mixprec.callbacks.overflow_guard`."""

import itertools
import re
import warnings

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers
from models import make_mlp
from models import regression_data

import tf_mixprec as mp

NEVER = 10**6
X, Y = regression_data(32)


def messages(function, *args, **options):
    """Returns the texts of the warnings of ours in a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mp.LossScaleWarning)
        function(*args, **options)
    return [
        str(each.message)
        for each in caught
        if issubclass(each.category, mp.LossScaleWarning)
    ]


def slow_values(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


class Run:
    """A guarded run, batch by batch, without `fit` and its time to trace.

    Args:
        guard: The guard.
        **options: Of the optimizer.
    """

    def __init__(self, guard, **options):
        self.model = keras.Sequential(
            [keras.Input((1,)), layers.Dense(1, use_bias=False)]
        )
        self.model.compile(mp.wrap("sgd", **options), "mse")
        self.model.make_train_function()
        self.model.stop_training = False
        self.guard = guard
        guard.set_model(self.model)
        guard.on_train_begin()

    def epoch(self, batches):
        """Trains on batches that are bad or not."""
        self.guard.on_epoch_begin(0)
        for index, is_bad in enumerate(batches):
            self.step(is_bad)
            self.guard.on_train_batch_end(index)
        self.guard.on_epoch_end(0)

    def warnings_in(self, batches):
        """Returns how many there are after each batch, and at the end."""
        self.guard.on_epoch_begin(0)
        found = []
        for index, is_bad in enumerate(batches):
            self.step(is_bad)
            found.append(len(messages(self.guard.on_train_batch_end, index)))
        found.append(len(messages(self.guard.on_epoch_end, 0)))
        return list(itertools.accumulate(found))

    def step(self, is_bad):
        optimizer = self.model.optimizer
        optimizer.scale_loss(1.0)
        optimizer.apply(
            [tf.constant([[np.nan if is_bad else 1.0]])],
            self.model.trainable_variables,
        )


def guard(**options):
    """Returns a guard for which everything but what is given is off."""
    return mp.callbacks.OverflowGuard(
        **{"patience": NEVER, "floor_patience": NEVER, **options}
    )


PATTERN = [1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]


def runs_so_far(bad, patience, check_every):
    """Returns how many runs have been acted on after each batch, and the end.

    A run that is over at a check is none.
    """
    found, acted = [], set()
    start = None
    for index, is_bad in enumerate(bad):
        start = None if not is_bad else index if start is None else start
        is_check = (index + 1) % check_every == 0
        if is_check and is_bad and index - start + 1 >= patience:
            acted.add(start)
        found.append(len(acted))
    if bad[-1] and len(bad) - start >= patience:
        acted.add(start)
    return [*found, len(acted)]


@pytest.mark.parametrize("check_every", [1, 7, *slow_values(2, 4, 50)])
@pytest.mark.parametrize("patience", [3, *slow_values(1, 2, 5)])
def test_a_run_is_acted_on_once(patience, check_every):
    run = Run(guard(patience=patience, check_every=check_every))
    expected = runs_so_far(PATTERN, patience, check_every)
    assert expected[-1] > 0
    assert run.warnings_in(PATTERN) == expected


def test_a_run_goes_on_in_the_next_epoch():
    run = Run(guard(patience=5, check_every=50))
    assert run.warnings_in([0, 1, 1, 1]) == [0, 0, 0, 0, 0]
    assert run.warnings_in([1, 1, 0]) == [0, 0, 0, 0]  # it is over
    assert run.warnings_in([0, 1, 1, 1]) == [0, 0, 0, 0, 0]
    assert run.warnings_in([1, 1]) == [0, 0, 1]
    assert run.warnings_in([1, 1]) == [0, 0, 0]  # warned already


def test_a_run_goes_on_in_the_next_fit():
    run = Run(guard(patience=3, action="stop", check_every=50))
    assert run.warnings_in([1, 1, 1]) == [0, 0, 0, 1]
    assert run.model.stop_training
    run.model.stop_training = False
    run.guard.on_train_begin()
    assert run.warnings_in([1]) == [0, 1]
    assert run.model.stop_training


def floors_so_far(bad, patience, scale, growth_interval):
    """Returns the same as `runs_so_far`, of a floor at 1, at every batch."""
    found, events, skipped, good, acted = [], 0, 0, 0, False
    for is_bad in bad:
        skipped = skipped + is_bad if scale == 1 else 0
        acted = acted and scale == 1
        if skipped >= patience and not acted:
            events, acted = events + 1, True
        found.append(events)
        good = 0 if is_bad else good + 1
        if is_bad:
            scale = max(scale / 2, 1)
        elif good == growth_interval:
            scale, good = scale * 2, 0
    return [*found, events]


@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("scale", [1, 4])
def test_a_floor_is_acted_on_once(patience, scale):
    """Until the scale has been above it."""
    run = Run(
        guard(floor_patience=patience, check_every=1),
        initial_scale=scale,
        growth_interval=2,
    )
    bad = [1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0]
    expected = floors_so_far(bad, patience, scale, 2)
    assert expected[-1] >= 1
    assert run.warnings_in(bad) == expected


def test_a_fixed_scale_is_a_floor():
    run = Run(
        guard(floor_patience=3, check_every=1), dynamic=False, initial_scale=8.0
    )
    assert run.warnings_in([1, 0, 0, 0, 1, 0]) == [0] * 7
    assert run.warnings_in([0, 1, 1, 1]) == [0, 1, 1, 1, 1]
    run.guard.on_train_begin()  # counts from here
    assert run.warnings_in([1, 0, 1, 0]) == [0] * 5
    assert run.warnings_in([1]) == [1, 1]


def test_two_events_are_one_message():
    run = Run(guard(patience=4, floor_patience=4), initial_scale=1.0)
    (message,) = messages(run.epoch, [1] * 4)
    assert message.startswith(
        "The last 4 steps were skipped, all in a row; 4 steps were skipped "
        "with the loss scale at its floor, because gradients were inf or nan. "
        "The loss scale is 1. "
    )


def fit(model, x, y, callback, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, callbacks=[callback], **options)


def bad_data(batches, bad):
    """Returns the data of so many batches, some of them bad."""
    x, y = regression_data(batches * 8)
    for index in bad:
        x[index * 8] = np.nan
    return x, y


def test_stop_stops_and_says_why():
    model = make_mlp(mp.wrap("sgd"), run_eagerly=True)
    x, y = bad_data(6, [1, 2, 3, 4])
    callback = guard(patience=3, action="stop", check_every=1)
    (message,) = messages(fit, model, x, y, callback, epochs=3)
    assert message.startswith("The last 3 steps were skipped")
    assert int(model.optimizer.iterations) == 1
    assert int(model.optimizer.skipped_steps) == 3


def test_raise_raises():
    model = make_mlp(mp.wrap("sgd"), run_eagerly=True)
    x, y = bad_data(6, [0, 1, 2, 3])
    with pytest.raises(
        FloatingPointError, match=r"The last 2 steps.*mlp/head/bias \(2\)"
    ):
        fit(model, x, y, guard(patience=2, action="raise", check_every=2))
    assert int(model.optimizer.skipped_steps) == 2


def test_the_default_is_quiet_while_a_scale_is_found():
    """From the highest there is, in a training that is well."""
    optimizer = mp.wrap("sgd", initial_scale=2.0**24)
    model = make_mlp(optimizer, jit_compile=False)
    callback = mp.callbacks.OverflowGuard()
    assert not messages(fit, model, X, Y, callback, epochs=10)
    assert int(model.optimizer.skipped_steps) > 5
    assert int(model.optimizer.iterations) > 5


def make_branches():
    """Returns a model of two branches, whose gradients are bad by themselves.

    Inputs are of shape (2,): one for each branch.
    """
    keras.utils.set_random_seed(1)
    x = keras.Input((2,))
    outputs = [
        layers.Dense(1, name="left")(x[:, :1]),
        layers.Dense(1, name="right")(x[:, 1:]),
    ]
    return keras.Model(x, layers.Concatenate()(outputs))


# In 6 batches of 8: 2 on the left, 3 on the right, 4 in all.
BAD_EXAMPLES = {"left": [5, 13], "right": [14, 15, 24, 47]}
BRANCH_Y = np.random.default_rng(1).normal(size=(48, 2)).astype("float32")


def branch_x():
    x = np.random.default_rng(0).normal(size=(48, 2)).astype("float32")
    x[BAD_EXAMPLES["left"], 0] = np.nan
    x[BAD_EXAMPLES["right"], 1] = np.inf
    return x


def bad_parts(size):
    """Returns how many parts of so many examples each variable is bad in."""
    counts = {
        name: len({example // size for example in examples})
        for name, examples in BAD_EXAMPLES.items()
    }
    return {
        f"{name}/{kind}": count
        for name, count in counts.items()
        for kind in ("kernel", "bias")
    }


def counts_in(message):
    return {
        path: int(count)
        for path, count in re.findall(r"(\S+/\S+) \((\d+)\)", message)
    }


def counts_of_fit(model, **options):
    """Returns what the guard says of a run with `BAD_EXAMPLES`."""
    (message,) = messages(
        fit, model, branch_x(), BRANCH_Y, guard(patience=1), **options
    )
    return counts_in(message)


def wrapped(**options):
    model = make_branches()
    optimizer = mp.wrap(keras.optimizers.Adam())
    model.compile(optimizer, "mse", **{"jit_compile": False, **options})
    return model


def by_mp_compile():
    model = make_branches()
    mp.compile(model, "adam", "mse", safe_skip=True, jit_compile=False)
    return model


def by_a_step(**options):
    options = {"jit_compile": False, **options}
    return mp.TrainStep(make_branches(), "adam", "mse", **options).model


def trained_before():
    model = wrapped()
    fit(model, np.zeros_like(BRANCH_Y), BRANCH_Y, keras.callbacks.History())
    assert model.train_function is not None
    return model


MODELS = {
    "graph": wrapped,
    "xla": lambda: wrapped(jit_compile=True),
    "eager": lambda: wrapped(run_eagerly=True),
    "loop": lambda: wrapped(steps_per_execution=2),
    "compile": by_mp_compile,
    "step": by_a_step,
    "step_xla": lambda: by_a_step(jit_compile=True),
    "trained_before": trained_before,
}
QUICK = ("eager", "trained_before")


@pytest.mark.parametrize(
    "name", [*QUICK, *slow_values(*(n for n in MODELS if n not in QUICK))]
)
def test_it_names_the_variables(name):
    model = MODELS[name]()
    assert counts_of_fit(model) == bad_parts(8)
    assert int(model.optimizer.skipped_steps) == 4


@pytest.mark.slow
def test_micro_batches_are_counted():
    model = by_a_step(accumulation_steps=2)
    x = branch_x()
    x[40:] = np.nan  # the last step is skipped, which is what is acted on
    (message,) = messages(fit, model, x, BRANCH_Y, guard(patience=1))
    expected = {
        # Examples 47 and 44 are in micro-batches of their own.
        path: count + (2 if path.startswith("left") else 1)
        for path, count in bad_parts(4).items()
    }
    assert counts_in(message) == expected
    assert int(model.optimizer.skipped_steps) == 1


@pytest.mark.parametrize("make_model", [wrapped, *slow_values(by_a_step)])
@strategies.SEVERAL
def test_several_replicas_count_as_one(make_model, strategy_name):
    with strategies.make(strategy_name).scope():
        model = make_model()
    assert counts_of_fit(model) == bad_parts(8)


@pytest.mark.slow
def test_micro_batches_on_several_replicas():
    with strategies.make("mirrored_2").scope():
        model = by_a_step(accumulation_steps=2)
    x, bad = branch_x(), np.zeros((48, 2), bool)
    x[40:] = np.nan
    bad[BAD_EXAMPLES["left"], 0] = bad[BAD_EXAMPLES["right"], 1] = True
    bad[40:] = True
    (message,) = messages(fit, model, x, BRANCH_Y, guard(patience=1))
    # Batches, replicas, micro-batches, examples, branches.
    left, right = bad.reshape(6, 2, 2, 2, 2).any(axis=(1, 3)).sum(axis=(0, 1))
    assert counts_in(message) == {
        "left/kernel": left,
        "left/bias": left,
        "right/kernel": right,
        "right/bias": right,
    }


def test_a_model_without_an_input_counts_from_the_second_batch():
    model = keras.Sequential([layers.Dense(1, name="head")])
    model.compile(mp.wrap("sgd"), "mse", jit_compile=False)
    x, y = bad_data(4, [0, 1, 3])
    *_, message = messages(fit, model, x, y, guard(patience=1))
    assert list(counts_in(message).values()) == [2, 2]
    assert int(model.optimizer.skipped_steps) == 3


def test_each_fit_counts_anew_and_traces_once():
    traces = []

    def loss(y, prediction):
        traces.append(1)
        return keras.ops.square(y - prediction)

    model = make_branches()
    model.compile(mp.wrap("sgd"), loss, jit_compile=False)
    callback = guard(patience=1)
    for _ in range(2):
        (message,) = messages(fit, model, branch_x(), BRANCH_Y, callback)
        assert counts_in(message) == bad_parts(8)
    assert len(traces) == 1


def test_the_ten_worst_are_named_from_the_loss_on():
    model = keras.Sequential(
        [keras.Input((2,))]
        + [layers.Dense(2, name=f"layer_{i}") for i in range(6)]
    )
    model.compile(mp.wrap("sgd"), "mse", run_eagerly=True)
    y = np.full((8, 2), np.inf, "float32")
    (message,) = messages(fit, model, np.ones_like(y), y, guard(patience=1))
    names = [
        f"layer_{i}/{kind}"
        for i in range(5, 0, -1)
        for kind in ("bias", "kernel")
    ]
    assert ", ".join(f"sequential/{n} (1)" for n in names) in re.sub(
        r"sequential_\d+", "sequential", message
    )
    assert "and 2 more variables" in message
    for advice in (
        "The loss scale is 16384.",
        "bfloat16",
        "mp.PrecisionRules",
        "learning rate",
        "clip",
        "inputs",
    ):
        assert advice in message


def test_worse_ones_come_first():
    counts = {"a": 1, "b": 3, "c": 3, "d": 2}
    message = mp.callbacks.overflow_guard._where(counts)
    assert "c (3), b (3), d (2), a (1)." in message


def test_without_counts_no_variable_is_named():
    run = Run(guard(patience=1))
    run.model.optimizer.consecutive_skipped_steps = 1
    (message,) = messages(run.guard.on_epoch_end, 0)
    assert "No variable was seen with such a gradient." in message


def test_the_device_is_asked_at_checks_only(monkeypatch):
    asked = []
    original = keras.ops.convert_to_numpy
    monkeypatch.setattr(
        keras.ops,
        "convert_to_numpy",
        lambda x: asked.append(x.name) or original(x),
    )
    run = Run(guard(check_every=4))
    run.epoch([0] * 10)
    state = ["consecutive_skipped_steps", "skipped_steps"]
    every = [*state, "skipped_at_floor", "loss_scale"]
    assert asked == every * 3


class Gan(keras.Model):
    """Two optimizers, one of which gets bad gradients."""

    def __init__(self):
        super().__init__()
        self.left = layers.Dense(1, dtype="mixed_float16")
        self.right = layers.Dense(1, dtype="mixed_float16")
        self.tracker = keras.metrics.Mean("loss")

    def call(self, x):
        return self.left(x) + self.right(x)

    def train_step(self, data):
        x, y = data
        for layer, optimizer, inputs in (
            (self.left, self.left_optimizer, x),
            (self.right, self.right_optimizer, tf.ones_like(x)),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.square(tf.cast(layer(inputs), tf.float32) - y)
                )
                scaled = optimizer.scale_loss(loss)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(scaled, variables), variables)
        self.tracker.update_state(1.0)
        return {"loss": self.tracker.result()}


@pytest.mark.slow
def test_one_of_two_optimizers():
    model = Gan()
    model.left_optimizer = mp.wrap("sgd")
    model.right_optimizer = mp.wrap("sgd")
    model(X[:8])
    model.compile(jit_compile=False)
    x, y = bad_data(4, [0, 1, 2, 3])
    guards = [
        guard(patience=1, optimizer=optimizer)
        for optimizer in (model.left_optimizer, model.right_optimizer)
    ]
    (message,) = messages(fit, model, x, y, guards)
    # The optimizers are built in the first step: it is none of the model's.
    assert list(counts_in(message).values()) == [3, 3]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_another_optimizer_is_refused(policy):
    model = make_mlp("sgd", policy)  # which Keras wraps under mixed_float16
    with pytest.raises(ValueError, match="must be used with an `mp.Loss"):
        fit(model, X, Y, mp.callbacks.OverflowGuard())


def test_an_optimizer_that_skips_nothing_is_refused():
    model = make_mlp(mp.wrap("sgd", skip_nonfinite=False))
    with pytest.raises(ValueError, match="an optimizer that skips steps"):
        fit(model, X, Y, mp.callbacks.OverflowGuard())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"action": "explode"}, ValueError, "'warn', 'stop' or 'raise'"),
        ({"action": None}, TypeError, "`action` must be a string"),
        ({"optimizer": "sgd"}, TypeError, "`optimizer` must be a `mp.Loss"),
        *(
            ({name: value}, error, f"`{name}` must be {rule}")
            for name, (value, error, rule) in itertools.product(
                ["patience", "floor_patience", "check_every"],
                [
                    (0, ValueError, "at least 1"),
                    (2.0, TypeError, "an int"),
                    (True, TypeError, "an int"),
                    (None, TypeError, "an int"),
                ],
            )
        ),
    ],
)
def test_wrong_arguments_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        mp.callbacks.OverflowGuard(**options)
