"""Faults of stock Keras on several replicas: the right value of each."""

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from fault_cases import kinds
from models import make_mlp
from models import regression_data

import tf_mixprec as mp


def make(strategy, values, inner, **options):
    """Returns an optimizer, its variable and a step under a strategy."""
    with strategy.scope():
        variable = keras.Variable(np.array(values, "float32"))
        optimizer = mp.wrap(inner(), **options)
        optimizer.build([variable])
    optimizer.scale_loss(1.0)

    @tf.function
    def step(gradient):
        strategy.run(
            lambda g: optimizer.apply([g], [variable]), args=(gradient,)
        )

    return (
        variable,
        optimizer,
        lambda *gradients: step(strategies.per_replica(strategy, gradients)),
    )


@kinds(1, "bad", np.nan, np.inf)
def test_every_replica_is_asked_whether_gradients_are_finite(bad):
    strategy = strategies.make("mirrored_2")
    variable, optimizer, step = make(
        strategy, [1.0, 2.0], lambda: keras.optimizers.SGD(1.0), initial_scale=8
    )
    step([1.0, 1.0], [bad, 1.0])  # on the second replica only
    assert strategies.one_value(strategy, variable).tolist() == [1.0, 2.0]
    assert strategies.one_value(strategy, optimizer.loss_scale) == 4.0
    assert int(optimizer.iterations.numpy()) == 0


@kinds(1, "policy", "mixed_float16", "mixed_bfloat16", "float32")
def test_fit_skips_a_batch_that_is_bad_on_one_replica(policy):
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        model = make_mlp(mp.wrap("sgd"), policy)
    x, y = regression_data(16)
    before = model.get_weights()
    x[-1] = np.inf
    model.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.optimizer.loss_scale.numpy() == 2.0**14


@kinds(23, "strategy_name", "mirrored_2", "mirrored_4", "one_device")
def test_gradient_accumulation(strategy_name):
    strategy = strategies.make(strategy_name)
    variable, optimizer, step = make(
        strategy,
        0.0,
        lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
        initial_scale=1.0,
    )
    count = strategy.num_replicas_in_sync
    # 3 and 7 summed over replicas, whose mean over two steps is 5.
    step(*[3.0 / count] * count)
    step(*[7.0 / count] * count)
    assert strategies.one_value(strategy, variable) == -5.0
    assert int(optimizer.iterations.numpy()) == 1


@kinds(24, "policy", "float32", "mixed_float16")
def test_compiled_fit_under_a_strategy_on_cpus_names_the_pair(policy):
    """Float32 Keras fails there as well, with an error about resources."""
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        model = make_mlp(mp.wrap("sgd"), policy, jit_compile=True)
    x, y = regression_data(16)
    with pytest.raises(
        ValueError, match=r"MirroredStrategy on CPUs and `jit_compile=True`"
    ):
        model.fit(x, y, verbose=0)


@kinds(24, "strategy_name", "first_device", "mirrored_1", "none")
def test_compiled_fit_works_with_one_replica(strategy_name):
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        model = make_mlp(mp.wrap("sgd"), "float32", jit_compile=True)
    x, y = regression_data(16)
    losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@kinds(25, "strategy_name", "none", "one_device", "mirrored_1", "mirrored_2")
def test_fit_reaches_the_loss_of_float32(strategy_name):
    x, y = regression_data(32)

    def fit(policy, optimizer):
        strategy = strategies.make(strategy_name)
        with strategy.scope():
            model = make_mlp(optimizer(), policy)
        return model.fit(
            x, y, epochs=3, batch_size=16, shuffle=False, verbose=0
        ).history["loss"]

    expected = fit("float32", lambda: keras.optimizers.SGD(0.1))
    mixed = fit("mixed_float16", lambda: mp.wrap(keras.optimizers.SGD(0.1)))
    # float16 activations, through six steps.
    np.testing.assert_allclose(mixed, expected, rtol=2e-2)


@kinds(25, "steps", 2)
def test_steps_per_execution_with_one_device(steps):
    strategy = strategies.make("one_device")
    with strategy.scope():
        model = make_mlp(mp.wrap("sgd"), steps_per_execution=steps)
    x, y = regression_data(32)
    losses = model.fit(x, y, epochs=3, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@kinds(79, "strategy_name", "mirrored_2", "mirrored_4")
def test_a_nan_on_the_first_replica(strategy_name):
    strategy = strategies.make(strategy_name)
    variable, optimizer, step = make(
        strategy,
        [1.0],
        lambda: keras.optimizers.SGD(0.1),
        initial_scale=8.0,
        growth_interval=2,
    )
    count = strategy.num_replicas_in_sync
    step([np.nan], *[[1.0]] * (count - 1))
    assert strategies.copies(strategy, variable) == [[1.0]] * count
    assert strategies.copies(strategy, optimizer.loss_scale) == [4.0] * count
    for _ in range(2):
        step(*[[16.0 / count]] * count)  # 4 after the sum and unscaled
    # 1 - 2 * 0.1 * 4, in two float32 roundings.
    np.testing.assert_allclose(
        strategies.one_value(strategy, variable), [0.2], rtol=1e-6
    )
    assert strategies.copies(strategy, optimizer.loss_scale) == [8.0] * count
    assert strategies.copies(strategy, optimizer.good_steps) == [0] * count


@kinds(83, "strategy_name", "mirrored_2", "mirrored_4")
def test_sparse_and_missing_gradients(strategy_name):
    strategy = strategies.make(strategy_name)
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        table = keras.Variable(np.ones((6, 2), "float32"))
        unused = keras.Variable([1.0])
        optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=4.0)
        optimizer.build([table, unused])
    optimizer.scale_loss(1.0)

    @tf.function
    def step(values, rows):
        def replica(values, row):
            gradient = tf.IndexedSlices(
                values[None], row[None], tf.constant([6, 2])
            )
            optimizer.apply([gradient, None], [table, unused])

        strategy.run(replica, args=(values, rows))

    rows = strategies.per_replica(strategy, [i % 3 for i in range(count)])

    def values(*last):
        return strategies.per_replica(
            strategy, [[4.0, 2.0]] * (count - 1) + [list(last)]
        )

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        step(values(4.0, 2.0), rows)
    expected = np.ones((6, 2))
    for i in range(count):
        expected[i % 3] -= [1.0, 0.5]
    assert (strategies.one_value(strategy, table) == expected).all()
    assert strategies.one_value(strategy, unused) == [1.0]
    step(values(np.nan, 2.0), rows)
    assert (strategies.one_value(strategy, table) == expected).all()
    assert strategies.one_value(strategy, optimizer.loss_scale) == 2.0


@kinds(83, "optimizer", "sgd", "adam")
def test_an_embedding_trains_under_a_strategy(optimizer):
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(10, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(mp.wrap(optimizer), "mse")
    x = np.random.default_rng(0).integers(0, 10, (32, 3))
    y = x.sum(axis=1, keepdims=True) / 30.0
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
