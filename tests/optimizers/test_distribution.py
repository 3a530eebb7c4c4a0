"""One answer on every replica."""

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from models import make_mlp
from models import regression_data

import tf_mixprec as mp
from tf_mixprec.optimizers import distribution

NAN = np.float32(np.nan)
SHAPES = ((3, 2), (4,), ())

# How the update is made: compiled with masked writes, or in a branch.
UPDATES = pytest.mark.parametrize(
    "jit_compile", [True, False], ids=["masked", "branch"]
)


class Replicas:
    """An optimizer and its variables under a strategy."""

    def __init__(self, strategy_name, inner, call=tf.function, **options):
        self.strategy = strategies.make(strategy_name)
        with self.strategy.scope():
            self.variables = [
                keras.Variable(np.ones(shape, "float32")) for shape in SHAPES
            ]
            self.optimizer = mp.wrap(
                inner(),
                **{"initial_scale": 8.0, **options},
            )
            self.optimizer.build(self.variables)
        self.optimizer.scale_loss(1.0)

        def step(*gradients):
            self.strategy.run(self.apply, args=(gradients,))

        self._step = call(step)

    @property
    def count(self):
        return self.strategy.num_replicas_in_sync

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.variables)

    def gradients(self, seed=0):
        """Returns scaled gradients by variable and replica."""
        rng = np.random.default_rng(seed)
        return [
            [
                8.0 * rng.normal(size=shape).astype("float32")
                for _ in range(self.count)
            ]
            for shape in SHAPES
        ]

    def step(self, gradients):
        self._step(
            *(strategies.per_replica(self.strategy, g) for g in gradients)
        )

    def values(self):
        """Returns all values, having checked that no replica has another."""
        return [
            strategies.one_value(self.strategy, v)
            for v in [*self.variables, *self.optimizer.variables]
        ]

    def scalar(self, name):
        variable = getattr(self.optimizer, name)
        return strategies.one_value(self.strategy, variable)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@strategies.ALL
@UPDATES
def test_a_nan_anywhere_changes_nothing_anywhere(strategy_name, jit_compile):
    """On each replica in turn, in each variable in turn."""
    replicas = Replicas(
        strategy_name,
        lambda: keras.optimizers.Adam(0.1, use_ema=True, weight_decay=0.1),
        jit_compile=jit_compile,
        initial_scale=2.0**20,
    )
    replicas.step(replicas.gradients())
    skipped = 0
    before = replicas.values()
    inner = len(mp.LossScaleState._fields)
    for replica in range(replicas.count):
        for variable in range(len(SHAPES)):
            gradients = replicas.gradients()
            gradients[variable][replica] = gradients[variable][replica] * NAN
            replicas.step(gradients)
            skipped += 1
            after = replicas.values()
            count = len(SHAPES)
            assert_same(before[:count], after[:count])
            assert_same(before[count + inner :], after[count + inner :])
            assert replicas.scalar("loss_scale") == 2.0 ** (20 - skipped)
            assert replicas.scalar("skipped_steps") == skipped
    assert replicas.scalar("good_steps") == 0


@strategies.SOME
@UPDATES
def test_a_bad_micro_batch_is_dropped(strategy_name, jit_compile):
    """At each micro-batch in turn; the average is over the good ones."""

    def run(bad_at):
        replicas = Replicas(
            strategy_name,
            lambda: keras.optimizers.SGD(
                0.1, momentum=0.9, gradient_accumulation_steps=3
            ),
            jit_compile=jit_compile,
            min_scale=8.0,
        )
        for i in range(6):
            if i == bad_at:
                bad = replicas.gradients(i)
                bad[1][-1] = bad[1][-1] * NAN
                replicas.step(bad)
            replicas.step(replicas.gradients(i))
        return replicas

    expected = run(bad_at=None)
    assert expected.optimizer.iterations == 2
    for bad_at in range(3):
        replicas = run(bad_at)
        count = len(mp.LossScaleState._fields)
        assert_same(
            replicas.values()[: len(SHAPES)], expected.values()[: len(SHAPES)]
        )
        assert_same(
            replicas.values()[len(SHAPES) + count :],
            expected.values()[len(SHAPES) + count :],
        )
        assert replicas.scalar("skipped_steps") == 1


@strategies.SOME
@UPDATES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"clipnorm": 0.5}, marks=pytest.mark.slow),
        pytest.param({"clipvalue": 0.3}, marks=pytest.mark.slow),
        {"global_clipnorm": 0.5},
        {"gradient_accumulation_steps": 2},
        pytest.param(
            {"use_ema": True, "ema_overwrite_frequency": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param({"weight_decay": 0.1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_replicas_equal_one_with_the_whole_batch(
    strategy_name, jit_compile, settings
):
    """The bare optimizer with the gradients summed in float64."""
    replicas = Replicas(
        strategy_name,
        lambda: keras.optimizers.Adam(0.1, **settings),
        jit_compile=jit_compile,
    )
    bare = keras.optimizers.Adam(0.1, **settings)
    variables = [keras.Variable(np.ones(s, "float32")) for s in SHAPES]
    for i in range(4):
        gradients = replicas.gradients(i)
        replicas.step(gradients)
        whole = [
            (np.sum(g, axis=0, dtype="float64") / 8.0).astype("float32")
            for g in gradients
        ]
        bare.apply([tf.constant(g) for g in whole], variables)
    for variable, expected in zip(replicas.variables, variables, strict=True):
        # Rounding of the sums, through four steps of Adam.
        np.testing.assert_allclose(
            strategies.one_value(replicas.strategy, variable),
            expected.numpy(),
            rtol=1e-5,
            atol=1e-6,
        )


@strategies.SEVERAL
@pytest.mark.parametrize(
    "name",
    [
        "Adafactor",
        pytest.param("AdamW", marks=pytest.mark.slow),
        "Lamb",
        pytest.param("Lion", marks=pytest.mark.slow),
        pytest.param("Nadam", marks=pytest.mark.slow),
        pytest.param("RMSprop", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_optimizer(strategy_name, name):
    def make():
        return getattr(keras.optimizers, name)(0.1)

    replicas = Replicas(strategy_name, make, jit_compile=True)
    bare = make()
    variables = [keras.Variable(np.ones(s, "float32")) for s in SHAPES]
    for i in range(3):
        gradients = replicas.gradients(i)
        replicas.step(gradients)
        whole = [np.sum(g, axis=0, dtype="float64") / 8.0 for g in gradients]
        bare.apply([tf.constant(g, "float32") for g in whole], variables)
    for variable, expected in zip(replicas.variables, variables, strict=True):
        np.testing.assert_allclose(
            strategies.one_value(replicas.strategy, variable),
            expected.numpy(),
            rtol=1e-4,
            atol=1e-5,
        )


@strategies.SEVERAL
def test_eager_replicas(strategy_name):
    """Without `tf.function`; a trace is kept and not made again."""
    replicas = Replicas(
        strategy_name, lambda: keras.optimizers.SGD(1.0), call=lambda f: f
    )
    graph = Replicas(strategy_name, lambda: keras.optimizers.SGD(1.0))
    for i in range(3):
        for each in (replicas, graph):
            each.step(each.gradients(i))
    assert_same(replicas.values(), graph.values())
    traces = replicas.optimizer._traces._traces
    assert len(traces) == replicas.count
    # A setting changed meanwhile is not overlooked.
    replicas.optimizer.clipvalue = 1e-9
    before = [v.numpy() for v in replicas.variables]
    replicas.step(replicas.gradients())
    for variable, value in zip(replicas.variables, before, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-8)


@strategies.SEVERAL
def test_unscale_sums_once_and_for_all(strategy_name):
    replicas = Replicas(strategy_name, lambda: keras.optimizers.SGD(1.0))
    optimizer, variables = replicas.optimizer, replicas.variables

    def clipped(gradients):
        gradients, found_inf = optimizer.unscale(gradients, variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_unscaled(gradients, variables, found_inf)

    replicas.apply = clipped
    gradients = replicas.gradients()
    replicas.step(gradients)
    whole = [np.sum(g, axis=0, dtype="float64") / 8.0 for g in gradients]
    norm = np.sqrt(sum(np.sum(g**2) for g in whole))
    for variable, gradient in zip(variables, whole, strict=True):
        np.testing.assert_allclose(
            strategies.one_value(replicas.strategy, variable),
            1.0 - gradient * min(1.0, 0.5 / norm),
            rtol=1e-5,
            atol=1e-6,
        )
    gradients[0][-1] = gradients[0][-1] * NAN
    before = [v.numpy() for v in variables]
    replicas.step(gradients)
    assert_same(before, [v.numpy() for v in variables])
    assert replicas.scalar("skipped_steps") == 1


@strategies.SEVERAL
@pytest.mark.parametrize("way", ["guide", "apply_unscaled"])
def test_other_ways_to_apply(strategy_name, way):
    replicas = Replicas(strategy_name, lambda: keras.optimizers.SGD(1.0))
    optimizer, variables = replicas.optimizer, replicas.variables

    def guide(gradients):
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def never_scaled(gradients):
        optimizer.apply_unscaled([g / 8.0 for g in gradients], variables)

    replicas.apply = guide if way == "guide" else never_scaled
    gradients = replicas.gradients()
    replicas.step(gradients)
    for variable, gradient in zip(variables, gradients, strict=True):
        np.testing.assert_allclose(
            strategies.one_value(replicas.strategy, variable),
            1.0 - np.sum(gradient, axis=0) / 8.0,
            rtol=1e-5,
            atol=1e-6,
        )


@strategies.SEVERAL
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_all_reduce_dtype_is_what_travels(strategy_name, dtype):
    replicas = Replicas(
        strategy_name, lambda: keras.optimizers.SGD(1.0), all_reduce_dtype=dtype
    )
    graph = replicas._step.get_concrete_function(
        *(
            strategies.per_replica(replicas.strategy, g)
            for g in replicas.gradients()
        )
    ).graph
    sums = [op for op in graph.get_operations() if op.type == "AddN"]
    assert len(sums) == len(SHAPES)  # each gradient is summed once
    for operation in sums:
        assert len(operation.inputs) == replicas.count
        assert {tensor.dtype.name for tensor in operation.inputs} == {dtype}
    replicas.step(replicas.gradients())
    for variable, gradient in zip(
        replicas.variables, replicas.gradients(), strict=True
    ):
        expected = 1.0 - np.sum(gradient, axis=0) / 8.0
        eps = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24}[dtype]
        np.testing.assert_allclose(
            strategies.one_value(replicas.strategy, variable),
            expected,
            # One rounding of each summand and of each partial sum.
            atol=8 * eps * np.max(np.abs(gradient)),
        )


@strategies.SEVERAL
def test_a_sum_that_overflows_in_16_bits_skips_the_step(strategy_name):
    replicas = Replicas(
        strategy_name,
        lambda: keras.optimizers.SGD(1.0),
        all_reduce_dtype="float16",
    )
    gradients = [
        [np.full(shape, 40000.0, "float32")] * replicas.count
        for shape in SHAPES
    ]
    replicas.step(gradients)
    assert replicas.scalar("skipped_steps") == 1
    assert replicas.scalar("loss_scale") == 4.0
    for variable in replicas.variables:
        assert (strategies.one_value(replicas.strategy, variable) == 1.0).all()


@strategies.SEVERAL
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_large_variables_are_updated_by_masked_writes(
    strategy_name, jit_compile
):
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        variable = keras.Variable(np.ones(2**15, "float32"))
        optimizer = mp.wrap(
            keras.optimizers.Adam(0.1, global_clipnorm=1.0),
            jit_compile=jit_compile,
        )
        optimizer.build([variable])

    @tf.function
    def step(value):
        scale = optimizer.scale_loss(1.0)
        strategy.run(lambda: optimizer.apply([tf.fill([2**15], value) * scale]))

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    operations = [op.type for op in graph.get_operations()]
    compiled = [
        name
        for name, function in graph._functions.items()
        if function.cached_definition.attr["_XlaMustCompile"].b
    ]
    assert len(compiled) == strategy.num_replicas_in_sync
    assert "Switch" not in operations
    step(tf.constant(1.0))
    assert 0.89 < strategies.one_value(strategy, variable)[0] < 0.91
    step(tf.constant(NAN))
    assert int(strategies.one_value(strategy, optimizer.skipped_steps)) == 1


@strategies.SEVERAL
def test_fit_equals_fit_on_one_device(strategy_name):
    x, y = regression_data(32)

    def fit(strategy):
        with strategy.scope():
            model = make_mlp(
                mp.wrap(
                    keras.optimizers.SGD(0.1, global_clipnorm=0.5),
                    initial_scale=256.0,
                ),
                policy="float32",
            )
        logger = mp.callbacks.LossScaleLogger()
        options = {"batch_size": 16, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, epochs=2, callbacks=[logger], **options)
        bad = x.copy()
        bad[-1] = np.nan  # on the last replica only
        model.fit(bad, y, callbacks=[logger], **options)
        return model, history

    model, history = fit(strategies.make(strategy_name))
    expected, expected_history = fit(strategies.NoStrategy())
    np.testing.assert_allclose(
        history.history["loss"], expected_history.history["loss"], rtol=1e-5
    )
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert history.history["loss_scale"] == [256.0, 256.0]
    for name in mp.LossScaleState._fields:
        a, b = getattr(model.optimizer, name), getattr(expected.optimizer, name)
        assert strategies.one_value(strategies.make("none"), b) == a.numpy()


@strategies.SEVERAL
def test_checkpoint_under_a_strategy(strategy_name, tmp_path):
    def make():
        return Replicas(
            strategy_name,
            lambda: keras.optimizers.Adam(0.1),
            growth_interval=2,
        )

    replicas, restored = make(), make()

    def checkpoint(each):
        return tf.train.Checkpoint(
            optimizer=each.optimizer, variables=list(each.variables)
        )

    for i in range(3):
        replicas.step(replicas.gradients(i))
    path = checkpoint(replicas).save(str(tmp_path / "checkpoint"))
    checkpoint(restored).restore(path)
    for each in (replicas, restored):
        each.step(each.gradients(7))
    assert_same(replicas.values(), restored.values())


@pytest.mark.parametrize(
    ("strategy_name", "storage", "jit_compile"),
    [
        ("mirrored_2", "remainder", True),
        ("mirrored_2", "float32", False),
        pytest.param("mirrored_2", "float32", True, marks=pytest.mark.slow),
        pytest.param("mirrored_2", "remainder", False, marks=pytest.mark.slow),
    ],
)
def test_masters_are_the_same_on_every_replica(
    strategy_name, storage, jit_compile
):
    """And those of one device that is given the sums of the gradients."""

    def make(strategy):
        with strategy.scope():
            weights = [
                keras.Variable(np.ones(shape), dtype="bfloat16")
                for shape in SHAPES
            ]
            optimizer = mp.wrap(
                keras.optimizers.Adam(2.0**-10, use_ema=True),
                storage=storage,
                initial_scale=8.0,
                jit_compile=jit_compile,
                all_reduce_dtype="bfloat16",
            )
            optimizer.build(weights)
        optimizer.scale_loss(1.0)

        @tf.function
        def step(*gradients):
            strategy.run(
                lambda g: optimizer.apply(g, weights), args=(gradients,)
            )

        def values():
            return [
                strategies.one_value(strategy, v)
                for v in [*weights, *optimizer.variables]
            ]

        return optimizer, weights, step, values

    several, one = strategies.make(strategy_name), strategies.NoStrategy()
    count = several.num_replicas_in_sync
    ours, weights, step, values = make(several)
    theirs, their_weights, one_step, expected = make(one)
    rng = np.random.default_rng(0)
    for bad in (False, False, True, False):
        # Of 4 bits, so that sums in bfloat16 are exact.
        gradients = [
            [
                tf.constant(rng.integers(-8, 8, shape), "bfloat16")
                for _ in range(count)
            ]
            for shape in SHAPES
        ]
        if bad:
            gradients[0][-1] = gradients[0][-1] * NAN
        step(*(strategies.per_replica(several, g) for g in gradients))
        one_step(*(sum(g[1:], g[0]) for g in gradients))
        assert_same(values(), expected())
    assert int(strategies.one_value(several, ours.skipped_steps)) == 1
    # After the last epoch `fit` does this outside of replicas.
    with several.scope():
        ours.finalize_variable_values(weights)
    theirs.finalize_variable_values(their_weights)
    assert_same(values(), expected())


def test_masters_by_themselves_are_for_one_device():
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="bfloat16")
        optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build([weight])

    with pytest.raises(ValueError, match="inside of a loss scale"):
        strategy.run(lambda: optimizer.apply([tf.ones(1)], [weight]))


def test_an_optimizer_from_outside_of_the_scope_is_refused():
    strategy = strategies.make("mirrored_2")
    with strategy.scope():
        variable = keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(1.0))
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    with pytest.raises(ValueError, match="must be made in the scope"):
        strategy.run(lambda: optimizer.apply([tf.constant([1.0])], [variable]))


def test_a_step_outside_of_run_is_refused():
    replicas = Replicas("mirrored_2", lambda: keras.optimizers.SGD(1.0))
    gradients = [tf.ones(shape) for shape in SHAPES]
    with replicas.strategy.scope():
        for call in (
            lambda: replicas.optimizer.apply(gradients, replicas.variables),
            lambda: replicas.optimizer.unscale(gradients, replicas.variables),
        ):
            with pytest.raises(ValueError, match="must be taken in a replica"):
                call()


@strategies.SEVERAL
def test_a_function_around_each_replica_works(strategy_name):
    replicas = Replicas(strategy_name, lambda: keras.optimizers.SGD(1.0))
    plain = Replicas(strategy_name, lambda: keras.optimizers.SGD(1.0))
    replicas.apply = tf.function(replicas.apply)
    for each in (replicas, plain):
        each.step(each.gradients())
    assert_same(replicas.values(), plain.values())


@pytest.mark.parametrize(
    "strategy_class",
    [
        tf.distribute.TPUStrategy,
        tf.distribute.ParameterServerStrategy,
        tf.distribute.experimental.ParameterServerStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    ],
    ids=lambda c: c.__name__,
)
def test_strategies_without_copies_are_refused(strategy_class, monkeypatch):
    strategy = object.__new__(strategy_class)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    with pytest.raises(ValueError, match="MultiWorkerMirroredStrategy"):
        distribution.check_strategy()


def test_central_storage_is_refused_when_the_optimizer_is_made():
    strategy = tf.distribute.experimental.CentralStorageStrategy()
    with (
        strategy.scope(),
        pytest.raises(ValueError, match="must not be used with a loss scale"),
    ):
        mp.wrap("sgd")
