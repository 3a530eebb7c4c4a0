"""Stop at any moment, restore, go on: the same bits as never having stopped."""

import doctest
import functools
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import keras
import killed_run
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp
from tf_mixprec.numerics import rounding
from tf_mixprec.training import checkpoint as checkpoint_module
from tf_mixprec.training.checkpoint import Checkpoint

ROWS, BATCH = 32, 8
slow = pytest.mark.slow


def make_data(bad_row=3):
    """Returns an endless iterator in random order, one row with nan."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    y = x[:, :2].copy()
    x[bad_row] = np.nan
    tf.random.set_seed(0)  # the next epoch is shuffled by it
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=0)
    return iter(batches.batch(BATCH).repeat())


def make_model(policy="mixed_float16", seed=0):
    keras.utils.set_random_seed(seed)
    with mp.policy_scope(policy):
        return keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(4),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(2, dtype="float32"),
            ]
        )


def make_optimizer(**options):
    options = {"initial_scale": 256.0, "growth_interval": 3, **options}
    return mp.wrap(keras.optimizers.Adam(0.01), **options)


def make_step(
    policy="mixed_float16", seed=0, optimizer=None, step_class=None, **options
):
    optimizer = optimizer or make_optimizer()
    step_class = step_class or mp.TrainStep
    if step_class is mp.TrainStep:
        options = {"loss": "mse", "metrics": ["mae"], **options}
    options = {"jit_compile": False, **options}
    return step_class(make_model(policy, seed), optimizer, **options)


def make_small_step(optimizer=None):
    """Returns a step that is made quickly, for what is not in the layers."""
    with mp.policy_scope("mixed_float16"):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    return mp.TrainStep(model, optimizer or make_optimizer(), "mse")


def train(step, data, count):
    return [
        {k: v.numpy() for k, v in step(*next(data)).items()}
        for _ in range(count)
    ]


def state_of(step):
    """Returns every component of every variable, as arrays."""
    model = step.model
    variables = [
        *model.variables,
        *step.optimizer.variables,
        *model.metrics_variables,
    ]
    if step._totals is not None:
        variables += step._totals.variables
    for scale in step.loss_scales.values():
        variables += scale.variables
    strategy = model.distribute_strategy
    return [
        copy.numpy()
        for variable in variables
        for copy in strategy.experimental_local_results(variable._value)
    ]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def weights_of(model):
    return [v.numpy() for v in getattr(model, "model", model).variables]


def slots_of(step):
    inner = step.optimizer.inner_optimizer
    inner = getattr(inner, "inner_optimizer", inner)
    return [v.numpy() for v in inner.variables]


class OwnLoss(mp.TrainStep):
    """A loss with noise from a generator of the step, and two means."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator()

    def compute_loss(self, model, batch):
        x, y = batch
        noise = keras.random.normal(tf.shape(y), seed=self.noise)
        errors = tf.square(model(x, training=True) - y)
        return tf.reduce_mean(errors) + 0.01 * tf.reduce_mean(noise), {
            "worst": tf.reduce_max(errors)
        }


class TwoLosses(mp.TrainStep):
    def compute_loss(self, model, batch):
        x, y = batch
        error = model(x, training=True) - y
        return {
            "square": tf.reduce_mean(tf.square(error)),
            "absolute": 1e6 * tf.reduce_mean(tf.abs(error)),
        }


STORAGES = {
    "masters": {},
    "remainders": {"storage": "remainder"},
    "stochastic": {"rounding": "stochastic"},
    "no masters": {"rounding": "stochastic", "master_weights": False},
}


QUICK_PAIRS = [("masters", "remainders"), ("stochastic", "masters")]


def make_masters(name, seed=0):
    step = make_step("bfloat16", seed, make_optimizer(**STORAGES[name]))
    step.optimizer.build(step.model.trainable_variables)
    return step


RUNS = {
    "mixed_float16": lambda seed: make_step(seed=seed),
    "float32": lambda seed: make_step(
        "float32", seed, keras.optimizers.SGD(0.1, momentum=0.9)
    ),
    **{name: functools.partial(make_masters, name) for name in STORAGES},
    "float16 variables": lambda seed: make_step(
        "float16", seed, make_optimizer(initial_scale=4.0)
    ),
    "accumulation": lambda seed: make_step(seed=seed, accumulation_steps=2),
    "own loss": lambda seed: make_step(seed=seed, step_class=OwnLoss),
    "two losses": lambda seed: make_step(
        seed=seed,
        optimizer=keras.optimizers.Adam(0.01),
        step_class=TwoLosses,
        loss_scales={
            "square": "torch",
            "absolute": mp.DynamicLossScale(initial_scale=2.0**24),
        },
    ),
    "moving average and schedule": lambda seed: make_step(
        seed=seed,
        optimizer=keras.optimizers.RMSprop(
            mp.schedules.Warmup(0.01, 20), momentum=0.9, use_ema=True
        ),
    ),
}
QUICK = ("mixed_float16",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run, its state, and its directory with two checkpoints."""
    step, data = make_step(), make_data()
    checkpoint = Checkpoint(
        step, tmp_path_factory.mktemp("run"), data=data, max_to_keep=2
    )
    states = []
    for steps in (1, 2, 2):
        train(step, data, steps)
        checkpoint.save()
        states.append(state_of(step))
    return checkpoint, states[1:]


@pytest.fixture(scope="module")
def built():
    """A step with all its variables, to restore to."""
    step = make_step(seed=1)
    train(step, make_data(), 1)
    return step


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory):
    """As `saved`, of two replicas, with one checkpoint."""
    step = make_mirrored(2)
    train(step, make_data(), 5)
    checkpoint = Checkpoint(step, tmp_path_factory.mktemp("two"))
    checkpoint.save()
    return checkpoint, state_of(step)


def make_mirrored(count, seed=0):
    with strategies.mirrored(count).scope():
        return make_step(seed=seed)


def copied(checkpoint, directory):
    """Returns a copy of a directory with checkpoints, to be spoiled."""
    shutil.copytree(checkpoint._directory, directory / "copy")
    return directory / "copy"


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=slow) for n in RUNS]
)
def test_going_on_gives_the_same_bits(name, tmp_path):
    """Weights, slots, scale, masks, metrics and the order of the data."""
    step, data = RUNS[name](0), make_data()
    train(step, data, 6)
    path = Checkpoint(step, tmp_path, data=data).save()
    before = state_of(step)
    other, other_data = RUNS[name](1), make_data()
    checkpoint = Checkpoint(other, tmp_path, data=other_data)
    assert checkpoint.restore() == path
    logs, other_logs = train(step, data, 6), train(other, other_data, 6)
    assert_same(state_of(step), state_of(other))
    for a, b in zip(logs, other_logs, strict=True):
        assert list(a) == list(b)
        assert_same(a.values(), b.values())
    np.testing.assert_equal(step.epoch_logs(), other.epoch_logs())
    if name != "accumulation":  # which leaves out micro-batches
        assert int(step.optimizer.skipped_steps) >= 2
    # Into a step that has made other steps meanwhile.
    assert checkpoint.restore() == path
    assert_same(state_of(other), before)
    # The test can fail: other batches come without the position in the data.
    train(other, make_data(), 6)
    assert any(
        (a != b).any()
        for a, b in zip(state_of(step), state_of(other), strict=True)
    )


@slow
@pytest.mark.slow
def test_fit_goes_on(tmp_path):
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    y = x[:, :2].copy()
    x[3] = np.nan
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    whole = make_step()
    checkpoint = Checkpoint(whole, tmp_path)
    save = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epoch == 0 and checkpoint.save()
    )
    history = mp.fit(whole, (x, y), epochs=3, callbacks=[save], **options)
    resumed = make_step(seed=1)
    Checkpoint(resumed, tmp_path).restore()
    rest = mp.fit(resumed, (x, y), epochs=3, initial_epoch=1, **options)
    expected = {k: v[1:] for k, v in history.history.items()}
    assert rest.history == expected
    assert_same(state_of(whole), state_of(resumed))


@pytest.mark.slow
class TestBeforeTheFirstStep:
    def test_nothing_there(self, tmp_path):
        step = make_small_step()
        before = state_of(step)
        checkpoint = Checkpoint(step, tmp_path / "none")
        assert checkpoint.restore() is None
        assert checkpoint.latest is None
        assert checkpoint.checkpoints == []
        assert_same(state_of(step), before)
        assert not (tmp_path / "none").exists()

    def test_no_step_was_made(self, built, tmp_path):
        step = make_step()
        Checkpoint(step, tmp_path).save()
        Checkpoint(built, tmp_path).restore()
        variables = [*step.model.variables, *step.optimizer.variables]
        found = state_of(built)[: len(variables)]
        assert_same(found, [v.numpy() for v in variables])
        assert all(v.numpy() == 0 for v in built.model.metrics_variables)
        assert built.epoch_logs()["skipped"] == 0

    def test_metrics_wait_for_their_variables(self, saved, built, tmp_path):
        checkpoint, (_, state) = saved
        step = make_step(seed=1)
        own_methods = {*vars(step)}
        Checkpoint(step, checkpoint._directory).restore()
        # Saved without a step in between, and by another one.
        Checkpoint(step, tmp_path).save()
        Checkpoint(built, tmp_path).restore()
        assert_same(state_of(built), state)
        x, y = next(make_data())
        logs, expected = step(x, y), built(x, y)
        assert_same(state_of(step), state_of(built))
        assert_same(logs.values(), expected.values())
        assert {*vars(step)} == own_methods
        assert "reset_metrics" not in vars(step.model)

    @slow
    def test_a_new_epoch_drops_them(self, saved, built):
        checkpoint, _ = saved
        step = make_step(seed=1)
        batch = next(make_data())
        for each in (step, built):
            Checkpoint(each, checkpoint._directory).restore()
            each.reset_metrics()
            each(*batch)
        assert_same(state_of(step), state_of(built))

    @slow
    def test_an_evaluation_drops_the_metrics_only(self, saved, built):
        checkpoint, _ = saved
        step = make_step(seed=1)
        x, y = next(make_data())
        for each in (step, built):
            Checkpoint(each, checkpoint._directory).restore()
            each.evaluate((np.nan_to_num(x), y))
            each(x, y)
        assert_same(state_of(step), state_of(built))

    @pytest.mark.parametrize(
        "kind",
        [
            "subclass",
            *(pytest.param(k, marks=slow) for k in ("embedding", "lazy")),
        ],
    )
    def test_a_model_without_input(self, kind, tmp_path):
        class Subclass(keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.second = layers.Dense(3), layers.Dense(2)

            def call(self, inputs):
                return self.second(self.first(inputs["x"]))

        def make():
            if kind == "subclass":
                return Subclass()
            first = layers.Dense(3)
            if kind == "embedding":
                first = layers.Embedding(5, 3)
            return keras.Sequential([first, layers.Dense(2)])

        batch = np.ones((4, 4), "int32" if kind == "embedding" else "float32")
        model = make()
        model({"x": batch} if kind == "subclass" else batch)
        Checkpoint(mp.TrainStep(model, "adam", "mse"), tmp_path).save()
        new = make()
        Checkpoint(mp.TrainStep(new, "adam", "mse"), tmp_path).restore()
        assert_same(weights_of(model), weights_of(new))

    def test_a_model_that_cannot_be_built(self, tmp_path):
        step = mp.TrainStep(keras.Sequential([layers.Dense(2)]), "sgd", "mse")
        with pytest.raises(ValueError, match="give it a `keras.Input`"):
            Checkpoint(step, tmp_path).save()


def test_evaluate_starts_its_means_anew_after_a_restoration(tmp_path):
    """Also where metrics had to wait, and of two checkpoints."""

    class Step(mp.TrainStep):
        def compute_loss(self, model, batch):
            x, y = batch
            error = model(x) - y
            return tf.reduce_mean(error**2), {"error": tf.reduce_mean(error)}

    def make():
        keras.utils.set_random_seed(0)
        layers = [keras.Input((4,)), keras.layers.Dense(1)]
        return Step(keras.Sequential(layers), keras.optimizers.SGD(0.0))

    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    step = make()
    step(x, y)
    path = Checkpoint(step, tmp_path).save()
    step = make()
    for _ in range(2):
        assert Checkpoint(step, tmp_path).restore() == path
    step(x, y)
    step.trace_anew()
    step(x, y)
    step.evaluate((x, y * 100.0))
    expected = np.mean(step.predict(x) - y)
    np.testing.assert_allclose(
        step.evaluate((x, y))["error"], expected, rtol=1e-5
    )


@pytest.mark.slow
class TestKnobs:
    @pytest.mark.parametrize(
        ("preset", "options", "scale"),
        [
            (None, {"initial_scale": 2.0, "max_scale": 256.0}, 256.0),
            (None, {"initial_scale": 2048.0, "min_scale": 1024.0}, 1024.0),
            ("deepspeed", {"growth_interval": 50}, 512.0),
            ("fairseq", {"growth_factor": 4.0}, 512.0),
        ],
    )
    def test_rule(self, preset, options, scale, tmp_path):
        step = make_small_step()
        counters = {
            "good_steps": 2,
            "skipped_steps": 9,
            "steps_since_rescale": 5,
            "overflows_since_rescale": 3,
        }
        for name, value in {"loss_scale": 512.0, **counters}.items():
            setattr(step.optimizer, name, value)
        Checkpoint(step, tmp_path).save()
        optimizer = mp.wrap(keras.optimizers.Adam(0.01), preset, **options)
        rule = optimizer.rule
        Checkpoint(make_small_step(optimizer), tmp_path).restore()
        assert optimizer.rule == rule
        assert float(optimizer.loss_scale) == scale
        for name, value in counters.items():
            assert int(getattr(optimizer, name)) == value

    def test_hysteresis_is_moved_into_its_bounds(self, tmp_path):
        step = make_small_step(make_optimizer(hysteresis=5))
        Checkpoint(step, tmp_path).save()
        step = make_small_step(make_optimizer(hysteresis=3))
        Checkpoint(step, tmp_path).restore()
        assert int(step.optimizer.hysteresis_left) == 3

    def test_from_a_dynamic_scale_to_a_fixed_one(self, saved):
        checkpoint, _ = saved
        optimizer = mp.wrap(
            keras.optimizers.Adam(0.01), dynamic=False, initial_scale=8.0
        )
        Checkpoint(
            make_step(optimizer=optimizer), checkpoint._directory
        ).restore()
        assert float(optimizer.loss_scale) == 8.0
        skipped = int(checkpoint._step.optimizer.skipped_steps)
        assert int(optimizer.skipped_steps) == skipped > 0

    @pytest.mark.parametrize(
        ("options", "scale", "good_steps"),
        [
            ({}, 256.0, 0),
            ({"dynamic": False, "initial_scale": 4.0}, 4.0, 7),
            ({"dynamic": False, "initial_scale": 8.0}, 2.0, 7),
        ],
    )
    def test_from_a_fixed_scale(self, options, scale, good_steps, tmp_path):
        def make(**options):
            if "dynamic" in options:
                optimizer = mp.wrap(keras.optimizers.Adam(), **options)
            else:
                optimizer = make_optimizer()
            return make_small_step(optimizer)

        step = make(dynamic=False, initial_scale=8.0)
        step.optimizer.loss_scale = 2.0  # while it runs
        step.optimizer.good_steps = 7
        Checkpoint(step, tmp_path).save()
        step = make(**options)
        Checkpoint(step, tmp_path).restore()
        assert float(step.optimizer.loss_scale) == scale
        assert int(step.optimizer.good_steps) == good_steps

    def test_learning_rate_is_restored(self, tmp_path):
        step = make_small_step()
        step.optimizer.learning_rate = 0.5
        Checkpoint(step, tmp_path).save()
        step = make_small_step()
        Checkpoint(step, tmp_path).restore()
        assert float(step.optimizer.learning_rate) == 0.5

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    def test_policy_with_float32_variables(self, policy, saved, tmp_path):
        checkpoint, _ = saved
        old = checkpoint._step
        step = make_step(policy, optimizer=keras.optimizers.Adam(0.01))
        Checkpoint(step, checkpoint._directory).restore()
        assert_same(weights_of(old), weights_of(step))
        assert_same(slots_of(old), slots_of(step))
        assert float(step.optimizer.loss_scale) == 1.0  # it scales no loss
        Checkpoint(step, tmp_path).save()
        back = make_step()
        Checkpoint(back, tmp_path).restore()
        assert_same(slots_of(old), slots_of(back))
        assert float(back.optimizer.loss_scale) == 256.0  # and not 1

    def test_policy_of_a_converted_model(self, saved):
        checkpoint, _ = saved
        step = mp.TrainStep(
            make_model("float32"),
            make_optimizer(),
            "mse",
            policy="mixed_float16",
        )
        Checkpoint(step, checkpoint._directory).restore()
        assert_same(weights_of(checkpoint._step), weights_of(step))

    @pytest.mark.parametrize(
        ("policy", "options"),
        [
            pytest.param("bfloat16", {}, marks=slow),
            ("bfloat16", {"storage": "remainder"}),
            pytest.param("bfloat16", {"rounding": "stochastic"}, marks=slow),
            pytest.param("float16", {}, marks=slow),
        ],
    )
    def test_masters_are_the_float32_weights(
        self, policy, options, saved, tmp_path
    ):
        """From float32 to masters and back: no bit of a weight is lost."""
        checkpoint, _ = saved
        old = checkpoint._step
        step = make_step(policy, optimizer=make_optimizer(**options))
        Checkpoint(step, checkpoint._directory).restore()
        kept = step.optimizer.master_weights(step.model)
        for variable, other in zip(
            old.model.trainable_variables,
            step.model.trainable_variables,
            strict=True,
        ):
            np.testing.assert_array_equal(variable.numpy(), kept[other.path])
            np.testing.assert_allclose(variable, other, rtol=2**-8, atol=1e-7)
        assert_same(slots_of(old), slots_of(step))
        Checkpoint(step, tmp_path).save()
        back = make_step()
        Checkpoint(back, tmp_path).restore()
        pairs = zip(old.model.variables, back.model.variables, strict=True)
        for a, b in pairs:
            if a.trainable or "seed" in a.path:
                np.testing.assert_array_equal(a.numpy(), b.numpy())
            else:  # statistics have no master
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2**-8)
        assert_same(slots_of(old), slots_of(back))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pair if pair in QUICK_PAIRS else pytest.param(*pair, marks=slow)
            for pair in itertools.permutations(STORAGES, 2)
        ],
    )
    def test_storage_of_masters(self, old, new, tmp_path):
        step = make_masters(old)
        rng = np.random.default_rng(0)
        for master in step.optimizer.inner_optimizer._masters.values():
            value = rng.normal(size=master.weight.shape).astype("float32")
            master.write(value)
            if old == "stochastic":  # to the neighbour above
                master.weight.assign(
                    rounding.stochastically_rounded(value, 0xFFFF)
                )
        Checkpoint(step, tmp_path).save()
        other = make_masters(new)
        Checkpoint(other, tmp_path).restore()
        exact = step.optimizer.master_weights(step.model)
        kept = other.optimizer.master_weights(other.model)
        for a, b in zip(exact.values(), kept.values(), strict=True):
            if new == "no masters":  # an ulp, from one neighbour to the other
                np.testing.assert_allclose(a, b, rtol=2**-7)
            else:
                np.testing.assert_array_equal(a, b)

    def test_16_bit_variables_without_masters(self, saved):
        checkpoint, _ = saved
        optimizer = mp.wrap(
            keras.optimizers.Adam(0.01, epsilon=1e-4), master_weights=False
        )
        step = make_step("float16", optimizer=optimizer)
        Checkpoint(step, checkpoint._directory).restore()
        for a, b in zip(
            weights_of(checkpoint._step), weights_of(step), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=2**-11, atol=2**-24)

    def test_accumulation_steps(self, saved):
        checkpoint, (_, state) = saved
        step = make_step(seed=1, accumulation_steps=4)
        Checkpoint(step, checkpoint._directory).restore()
        variables = [*step.model.variables, *step.optimizer.variables]
        found = [v.numpy() for v in variables]
        assert_same(found, state[: len(variables)])

    def test_other_metrics_start_anew(self, saved):
        checkpoint, _ = saved
        step = make_step(metrics=["mse"])
        Checkpoint(step, checkpoint._directory).restore()
        assert_same(weights_of(step), weights_of(checkpoint._step))
        with pytest.warns(UserWarning, match="metrics in .* start anew"):
            step(*next(make_data()))
        assert float(step.model.metrics_variables[1]) in (0.0, BATCH)


@pytest.mark.slow
class TestReplicas:
    def test_as_many(self, saved_by_two):
        checkpoint, state = saved_by_two
        step = checkpoint._step
        states = []
        for _ in range(2):
            path = checkpoint.restore()
            assert_same(state_of(step), state)
            train(step, make_data(), 2)
            states.append(state_of(step))
        assert_same(*states)
        statistics = step.model.layers[1].moving_mean
        copies = strategies.copies(step.model.distribute_strategy, statistics)
        assert (copies[0] != copies[1]).any()  # each its own
        assert path == checkpoint.latest

    @slow
    def test_as_many_in_another_step(self, saved_by_two):
        checkpoint, _ = saved_by_two
        step = make_mirrored(2, seed=1)
        Checkpoint(step, checkpoint._directory).restore()
        checkpoint.restore()
        for each in (step, checkpoint._step):
            train(each, make_data(), 3)
        assert_same(state_of(step), state_of(checkpoint._step))

    def test_from_two_to_one(self, saved_by_two, built):
        checkpoint, _ = saved_by_two
        Checkpoint(checkpoint._step, checkpoint._directory).restore()
        Checkpoint(built, checkpoint._directory).restore()
        assert_values_are_same(checkpoint._step, built)

    def test_from_one_to_two(self, saved, saved_by_two):
        checkpoint, _ = saved
        step = saved_by_two[0]._step
        Checkpoint(step, checkpoint._directory).restore()
        Checkpoint(checkpoint._step, checkpoint._directory).restore()
        assert_values_are_same(step, checkpoint._step)
        strategy = step.model.distribute_strategy
        for variable in [*step.model.variables, *step.optimizer.variables]:
            strategies.one_value(strategy, variable)

    def test_inside_of_a_scope(self, tmp_path):
        strategy = strategies.mirrored(2)
        with strategy.scope():
            step = make_step("bfloat16")
            Checkpoint(step, tmp_path).save()
            other = make_step("bfloat16", seed=1)
            Checkpoint(other, tmp_path).restore()
        assert_same(state_of(step), state_of(other))

    def test_several_workers_are_refused(self, monkeypatch, tmp_path):
        step = make_mirrored(2)
        strategy = step.model.distribute_strategy
        monkeypatch.setattr(
            type(strategy), "num_replicas_in_sync", property(lambda _: 4)
        )
        with pytest.raises(ValueError, match="in one process"):
            Checkpoint(step, tmp_path)


def assert_values_are_same(a, b):
    """Compares what variables are from outside of the replicas."""

    def seen(step):
        return [
            v.numpy()
            for v in [
                *step.model.variables,
                *step.optimizer.variables,
                *step.model.metrics_variables,
                *step._totals.variables,
            ]
        ]

    assert_same(seen(a), seen(b))


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    path.unlink()


def replaced(path):
    path.write_text("something else entirely")


def of_something_else(path):
    prefix = str(path).partition("ckpt-3")[0] + "ckpt-3"
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(prefix)


class TestDamage:
    @pytest.mark.parametrize(
        ("spoil", "suffix"),
        [
            (truncated, "index"),
            (truncated, "data-00000-of-00001"),
            (flipped, "data-00000-of-00001"),
            (removed, "index"),
            (of_something_else, "index"),
            *(
                pytest.param(*case, marks=slow)
                for case in (
                    (flipped, "index"),
                    (emptied, "index"),
                    (emptied, "data-00000-of-00001"),
                    (removed, "data-00000-of-00001"),
                    (replaced, "index"),
                    (replaced, "data-00000-of-00001"),
                )
            ),
        ],
    )
    def test_file(self, spoil, suffix, saved, built, tmp_path):
        checkpoint, (state, _) = saved
        directory = copied(checkpoint, tmp_path)
        spoil(directory / f"ckpt-3.{suffix}")
        before, data = state_of(built), make_data()
        damaged = Checkpoint(built, directory, data=data)
        former, latest = damaged.checkpoints
        with pytest.raises(ValueError, match="ckpt-3") as caught:
            damaged.restore()
        assert "No variable was changed" in str(caught.value)
        assert_same(state_of(built), before)
        assert_same(next(data), next(make_data()))
        assert damaged.restore(former) == former
        assert_same(state_of(built), state)
        # The remedy of the message.
        for path in directory.glob("ckpt-3.*"):
            path.unlink()
        assert damaged.restore() == damaged.latest == former
        assert damaged.save().endswith("ckpt-4")

    @slow
    def test_any_bit_and_any_length(self, saved, built, tmp_path):
        """A file is refused, or has what was saved."""
        checkpoint, (_, state) = saved
        directory = copied(checkpoint, tmp_path)
        damaged = Checkpoint(built, directory, data=make_data())
        damaged.restore()
        rng = random.Random(0)
        refused = 0
        for path in sorted(directory.glob("ckpt-3.*")):
            whole = path.read_bytes()
            for _ in range(150):
                place = rng.randrange(len(whole))
                content = bytearray(whole)
                content[place] ^= 1 << rng.randrange(8)
                if rng.random() < 0.5:
                    content = content[:place]
                path.write_bytes(content)
                try:
                    damaged.restore()
                except ValueError:
                    refused += 1
                assert_same(state_of(built), state)
            path.write_bytes(whole)
        assert refused > 250

    @pytest.mark.parametrize(
        "content", ["", 'model_checkpoint_path: "ckpt-', "\0\0"]
    )
    def test_list(self, content, saved, built, tmp_path):
        checkpoint, (_, state) = saved
        directory = copied(checkpoint, tmp_path)
        (directory / "checkpoint").write_text(content)
        damaged = Checkpoint(built, directory)
        for use in (damaged.restore, damaged.save, lambda: damaged.latest):
            with pytest.raises(ValueError, match="list of checkpoints"):
                use()
        (directory / "checkpoint").unlink()
        assert damaged.restore() is None
        assert damaged.restore(directory / "ckpt-3")
        assert_same(state_of(built), state)
        assert damaged.save().endswith("ckpt-4")

    def test_list_cut_at_the_end_of_a_line(self, saved, tmp_path):
        checkpoint, _ = saved
        directory = copied(checkpoint, tmp_path)
        path = directory / "checkpoint"
        lines = path.read_text().splitlines(keepends=True)
        cut = Checkpoint(checkpoint._step, directory)
        for count in range(1, len(lines) + 1):
            path.write_text("".join(lines[:count]))
            assert cut.latest == str(directory / "ckpt-3")

    def test_no_such_file(self, saved, built):
        checkpoint, _ = saved
        damaged = Checkpoint(built, checkpoint._directory)
        with pytest.raises(ValueError, match="there is no file"):
            damaged.restore("other/ckpt-1")

    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (
                lambda: mp.TrainStep(
                    keras.Sequential([keras.Input((4,)), layers.Dense(2)]),
                    make_optimizer(),
                    "mse",
                ),
                "weights 0 of 9: dense/kernel, float of the shape",
            ),
            (
                lambda: mp.TrainStep(
                    keras.Sequential(
                        [
                            keras.Input((4,)),
                            layers.Dense(4),
                            layers.BatchNormalization(),
                            layers.GaussianDropout(0.5),
                            layers.LayerNormalization(),
                        ]
                    ),
                    make_optimizer(),
                    "mse",
                ),
                "dense/kernel, .* and here layer_normalization/gamma",
            ),
            (
                lambda: make_step(optimizer=keras.optimizers.SGD(0.01)),
                "the optimizer Adam, and here SGD",
            ),
            (
                lambda: make_step(
                    optimizer=keras.optimizers.Adam(0.01, amsgrad=True)
                ),
                "slots 14 of 14: nothing, and here velocity_hat of dense/ker",
            ),
            (
                lambda: make_step(
                    optimizer=keras.optimizers.Adam(mp.schedules.Warmup(0.1, 9))
                ),
                "learning_rate, float of the shape",
            ),
            (lambda: make_step(step_class=OwnLoss), "and here noise, int64"),
        ],
        ids=["model", "last layer", "optimizer", "slots", "schedule", "seeds"],
    )
    def test_of_another_run(self, make, match, saved):
        checkpoint, _ = saved
        step = make()
        step.optimizer.build(step.model.trainable_variables)
        before, data = state_of(step), make_data()
        with pytest.raises(ValueError, match=match) as caught:
            Checkpoint(step, checkpoint._directory, data=data).restore()
        assert "ckpt-3" in str(caught.value)
        assert_same(state_of(step), before)
        assert_same(next(data), next(make_data()))

    def test_slots_of_the_same_shapes_are_told_apart(self, tmp_path):
        def make(**options):
            optimizer = keras.optimizers.RMSprop(0.01, **options)
            return make_small_step(optimizer)

        Checkpoint(make(momentum=0.9), tmp_path).save()
        with pytest.raises(ValueError, match="momentum of .* average_gradient"):
            Checkpoint(make(centered=True), tmp_path).restore()


class TestData:
    def test_it_must_be_an_iterator_of_a_data_set(self, tmp_path):
        step = make_small_step()
        for data in (iter([1]), tf.data.Dataset.range(3), "data"):
            with pytest.raises(TypeError, match=r"`iter\(dataset\)`"):
                Checkpoint(step, tmp_path, data=data)

    def test_of_another_data_set(self, saved, built):
        checkpoint, _ = saved
        data = iter(tf.data.Dataset.range(8).batch(2))
        before = state_of(built)
        other = Checkpoint(built, checkpoint._directory, data=data)
        with pytest.raises(ValueError, match="the data set that was saved"):
            other.restore()
        assert_same(state_of(built), before)

    def test_none_was_saved(self, tmp_path):
        step = make_small_step()
        Checkpoint(step, tmp_path).save()
        with pytest.raises(ValueError, match="`data` must be left out"):
            Checkpoint(step, tmp_path, data=make_data()).restore()

    def test_a_generator_has_no_position(self, tmp_path):
        step = make_small_step()
        Checkpoint(step, tmp_path).save()
        spec = tf.TensorSpec((), tf.int32)
        data = tf.data.Dataset.from_generator(
            lambda: iter([1]), output_signature=spec
        )
        checkpoint = Checkpoint(step, tmp_path, data=iter(data))
        with pytest.raises(ValueError, match="Python generator"):
            checkpoint.save()
        assert checkpoint.latest.endswith("ckpt-1")
        assert Checkpoint(step, tmp_path).restore() == checkpoint.latest


@pytest.mark.slow
class TestDirectory:
    def test_the_last_ones_are_kept(self, tmp_path):
        step = make_small_step()
        checkpoint = Checkpoint(step, tmp_path, max_to_keep=2)
        paths = [checkpoint.save() for _ in range(3)]
        assert checkpoint.checkpoints == paths[1:]
        # Numbers go on, in another process and after an older one.
        again = Checkpoint(step, tmp_path, data=make_data(), max_to_keep=2)
        assert Checkpoint(step, tmp_path).restore(paths[1]) == paths[1]
        paths.append(again.save())
        assert again.checkpoints == paths[2:]
        assert checkpoint.latest == paths[-1]
        # Nothing else is there: no other files, and no folder.
        assert {path.name for path in tmp_path.iterdir()} == {
            "checkpoint",
            *(f"ckpt-{n}.index" for n in (3, 4)),
            *(f"ckpt-{n}.data-00000-of-00001" for n in (3, 4)),
        }
        every = Checkpoint(step, tmp_path, max_to_keep=None)
        every.save()
        assert len(every.checkpoints) == 3

    def test_it_can_be_moved(self, saved, built, tmp_path):
        checkpoint, (_, state) = saved
        shutil.copytree(checkpoint._directory, tmp_path / "another place")
        Checkpoint(built, tmp_path / "another place").restore()
        assert_same(state_of(built), state)

    @pytest.mark.parametrize("left", ["index", "data-00000-of-00001"])
    def test_what_a_kill_has_left_is_written_over(self, left, tmp_path):
        step = make_small_step()
        checkpoint = Checkpoint(step, tmp_path, data=make_data())
        first = checkpoint.save()
        (tmp_path / f"ckpt-2.{left}").write_text("a part")
        (tmp_path / "ckpt_position").mkdir()
        (tmp_path / "ckpt_position" / "data.index").write_text("a part")
        assert checkpoint.latest == first
        assert checkpoint.save().endswith("ckpt-2")
        assert checkpoint.restore().endswith("ckpt-2")
        assert not (tmp_path / "ckpt_position").exists()


def test_arguments(tmp_path):
    step = make_small_step()
    with pytest.raises(TypeError, match="must be a `mp.TrainStep`"):
        Checkpoint(step.model, tmp_path)
    for count in (True, 1.5):
        with pytest.raises(TypeError, match="`max_to_keep` must be an int"):
            Checkpoint(step, tmp_path, max_to_keep=count)
    with pytest.raises(ValueError, match="`directory` must not have"):
        Checkpoint(step, tmp_path / "[1]")
    with pytest.raises(ValueError, match="must be at least 1"):
        Checkpoint(step, tmp_path, max_to_keep=0)
    checkpoint = Checkpoint(step, tmp_path)
    step.model.compile("sgd", "mse")
    for use in (checkpoint.save, checkpoint.restore):
        with pytest.raises(RuntimeError, match="compiled anew"):
            use()


def test_nothing_is_added_to_the_steps(saved, built):
    """Neither the step nor what is traced of it knows of checkpoints."""
    checkpoint, _ = saved
    attributes, function = {**vars(built)}, built._function
    Checkpoint(built, checkpoint._directory, data=make_data()).restore()
    assert vars(built) == attributes
    train(built, make_data(), 1)
    assert built._function is function
    assert function.experimental_get_tracing_count() == 1


def test_the_example_runs():
    globals_ = {**vars(checkpoint_module)}
    failures, count = doctest.testmod(checkpoint_module, extraglobs=globals_)
    assert (failures, count > 0) == (0, True)


# Killed


def start(*arguments):
    script = pathlib.Path(killed_run.__file__)
    return subprocess.Popen(
        [sys.executable, script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def last_word(process, moment):
    """Runs a process until a moment, and returns what it said last.

    Args:
        process: From `start`.
        moment: The save, counted from 1, and the seconds after its beginning
            when the process is killed; 0 for the beginning of the run. `None`
            if it is not killed.
    """
    said = []
    with process:
        process.stdin.write("go\n")
        process.stdin.flush()
        for line in process.stdout:
            said.append(line.strip())
            saves = said.count("saving")
            if moment and saves == moment[0] and said[-1] != "saved":
                time.sleep(moment[1])
                process.kill()
    assert process.returncode == (-signal.SIGKILL if moment else 0)
    return said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 20])
def test_killed(kills, tmp_path):
    """Killed at any moment, also within a save: the same bits at the end."""
    seed = os.environ.get("KILL_SEED") or int.from_bytes(os.urandom(2), "big")
    sys.stdout.write(f"KILL_SEED={seed}\n")  # shown if it fails
    rng = random.Random(int(seed))
    steps = 12 * kills + 9  # and there is a save every second step
    # A save takes 30 ms, steps and what else is between two of them 10.
    moments = [
        (rng.randrange(5), rng.uniform(0, 0.05)) for _ in range(kills - 1)
    ]
    # First a save that is late enough for a former one, and early in itself.
    moments = [(2, rng.uniform(0, 0.02)), *moments, None]
    arguments = (tmp_path / "run", tmp_path / "result.npz", steps)
    lives, words = [start(*arguments) for _ in range(2)], []
    expected = killed_run.run(tmp_path / "whole", steps)
    for moment in moments:
        if len(words) + len(lives) < len(moments):
            lives.append(start(*arguments))  # while another one runs
        words.append(last_word(lives.pop(0), moment))
    sys.stdout.write(f"{[*zip(moments, words, strict=True)]}\n")
    with np.load(tmp_path / "result.npz") as found:
        resumed = list(found.values())
    assert_same(resumed, expected)
    assert expected[9 + 3] > 0  # skipped steps
    assert "saving" in words  # killed within a save
