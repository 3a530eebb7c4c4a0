"""16-bit variables with float32 masters, against explicit float32 copies."""

import inspect
import itertools

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from bare_optimizers import CLASSES
from bare_optimizers import SETTINGS
from bare_optimizers import SHAPES
from bare_optimizers import make
from bare_optimizers import make_gradients

import tf_mixprec as mp

STORAGES = pytest.mark.parametrize("storage", ["float32", "remainder"])
EVERYTHING = [
    ("float32", "nearest"),
    ("remainder", "nearest"),
    ("float32", "stochastic"),
    (None, "stochastic"),
]
KINDS = pytest.mark.parametrize(("storage", "rounding"), EVERYTHING)
MODES = pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("xla", marks=pytest.mark.slow)]
)


def rounded(x, dtype="bfloat16"):
    """Rounds in NumPy: bfloat16 half away from zero, float16 half to even."""
    x = np.asarray(x, "float32")
    if dtype == "float16":
        return np.clip(x, -65504, 65504).astype("float16")
    bits = x.view("uint32").astype("uint64") + 0x8000
    upper = (bits >> 16).astype("uint16").view(ml_dtypes.bfloat16)
    return upper.reshape(x.shape)


def make_weights(dtype="bfloat16", seed=0):
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=s).astype(dtype), dtype=dtype)
        for s in SHAPES
    ]


def bits(x):
    x = np.asarray(x)
    return x.view(f"uint{8 * x.dtype.itemsize}")


def in_mode(mode, function):
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "xla", autograph=False)


def masters_of(optimizer, weights):
    return [np.array(optimizer.master_of(w)) for w in weights]


def check_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


def cases():
    """Yields optimizer, setting, storage and dtype; most of them slow."""
    kinds = [
        ("float32", "bfloat16"),
        ("remainder", "bfloat16"),
        ("float32", "float16"),
    ]
    for name, setting, kind in itertools.product(CLASSES, SETTINGS, kinds):
        quick = (
            setting in ("weight_decay", "ema", "accumulation")
            if name in ("Adam", "SGD")
            else setting == "weight_decay" and kind == kinds[1]
        )
        marks = [] if quick else pytest.mark.slow
        yield pytest.param(name, setting, *kind, marks=marks)


@pytest.mark.parametrize(("name", "setting", "storage", "dtype"), list(cases()))
def test_a_step_is_that_on_float32_copies(name, setting, storage, dtype):
    """The loop that a careful user writes by hand has the same bits."""
    weights = make_weights(dtype)
    copies = [keras.Variable(w.numpy().astype("float32")) for w in weights]
    theirs = make(name, setting)
    theirs.build(copies)
    ours = mp.MasterWeightOptimizer(make(name, setting), storage)
    for step in range(4):
        gradients = [g.astype(dtype) for g in make_gradients(step)]
        theirs.apply([g.astype("float32") for g in gradients], copies)
        ours.apply([tf.constant(g) for g in gradients], weights)
        expected = [c.numpy() for c in copies]
        check_equal(masters_of(ours, weights), expected)
        check_equal(
            [w.numpy() for w in weights], [rounded(e, dtype) for e in expected]
        )
    check_equal(
        [v.numpy() for v in ours.inner_optimizer.variables],
        [v.numpy() for v in theirs.variables],
    )


@STORAGES
def test_a_model_trains_as_in_a_loop_with_float32_copies(storage):
    x = np.random.default_rng(0).normal(size=(4, 8, 6)).astype("float32")

    def make_model():
        keras.utils.set_random_seed(0)
        with mp.policy_scope("bfloat16"):
            return keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(8, "relu"),
                    keras.layers.Dense(2, dtype="float32"),
                ]
            )

    def gradients(model, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch) - batch[:, :2]))
        return tape.gradient(loss, model.trainable_variables)

    ours, theirs = make_model(), make_model()
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.Adam(0.01), storage)
    for batch in x:
        optimizer.apply(gradients(ours, batch), ours.trainable_variables)

    copies = [
        keras.Variable(v.numpy().astype("float32"))
        for v in theirs.trainable_variables
    ]
    adam = keras.optimizers.Adam(0.01)
    for batch in x:
        wide = [tf.cast(g, "float32") for g in gradients(theirs, batch)]
        adam.apply(wide, copies)
        for variable, copy in zip(
            theirs.trainable_variables, copies, strict=True
        ):
            narrow = variable.dtype == "bfloat16"
            variable.assign(rounded(copy.numpy()) if narrow else copy)
    check_equal(
        [w.numpy() for w in ours.weights], [w.numpy() for w in theirs.weights]
    )
    check_equal(
        masters_of(optimizer, ours.trainable_variables),
        [c.numpy() for c in copies],
    )


@MODES
@STORAGES
def test_wrapped_compiled_or_not_it_has_the_same_bits(storage, mode):
    def step(optimizer, weights, gradients):
        optimizer.apply([g * 8.0 for g in gradients], weights)

    results = []
    for jit_compile in (False, True):
        weights = make_weights()
        optimizer = mp.wrap(
            keras.optimizers.AdamW(0.1),
            storage=storage,
            initial_scale=8.0,
            jit_compile=jit_compile,
        )
        optimizer.build(weights)
        optimizer.scale_loss(1.0)
        run = in_mode(mode, lambda *g: step(optimizer, weights, g))  # noqa: B023
        for i in range(3):
            run(*(g.astype(ml_dtypes.bfloat16) for g in make_gradients(i)))
        results.append(
            masters_of(optimizer, weights) + [w.numpy() for w in weights]
        )
    check_equal(*results)
    copies = [
        keras.Variable(w.numpy().astype("float32")) for w in make_weights()
    ]
    theirs = keras.optimizers.AdamW(0.1)
    for i in range(3):
        theirs.apply(
            [
                g.astype(ml_dtypes.bfloat16).astype("float32")
                for g in make_gradients(i)
            ],
            copies,
        )
    if mode != "xla":  # which fuses products and sums
        check_equal(results[0][:4], [c.numpy() for c in copies])
    for a, b in zip(results[0][:4], copies, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5)


@MODES
@STORAGES
def test_masters_made_in_the_first_step_are_those_made_before_it(storage, mode):
    """XLA compiles no function that makes variables when it is called."""
    gradients = make_gradients(0)
    results = []
    for is_built_before in (True, False):
        weights = make_weights()
        optimizer = mp.MasterWeightOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), storage
        )
        if is_built_before:
            optimizer.build(weights)
        step = in_mode(mode, lambda *g: optimizer.apply(g, weights))  # noqa: B023
        for _ in range(2):
            step(*gradients)
        results.append(masters_of(optimizer, weights))
    check_equal(*results)
    assert np.all(results[0][0] != make_weights()[0].numpy().astype("f4"))


@pytest.mark.parametrize("compiled_by", ["keras", "mp"])
def test_a_16_bit_model_is_fitted_under_xla(compiled_by):
    keras.config.set_dtype_policy("bfloat16")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    if compiled_by == "mp":
        mp.compile(model, "adam", "mse", jit_compile=True)
    else:
        model.compile(mp.wrap("adam"), "mse", jit_compile=True)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]


@MODES
@KINDS
def test_a_skipped_step_changes_nothing(storage, rounding, mode):
    weights = make_weights()
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.Adam(0.1), storage, rounding
    )
    optimizer = mp.wrap(optimizer, initial_scale=8.0)
    optimizer.build(weights)
    optimizer.scale_loss(1.0)
    run = in_mode(mode, lambda *g: optimizer.apply(list(g), weights))
    good = [g.astype(ml_dtypes.bfloat16) for g in make_gradients(0)]
    run(*good)

    def state():
        inner = optimizer.inner_optimizer.variables
        return [v.numpy() for v in [*weights, *inner]]

    before = state()
    run(good[0] * np.nan, *good[1:])
    check_equal(state(), before)
    assert optimizer.skipped_steps.numpy() == 1
    run(*good)
    assert any((a != b).any() for a, b in zip(state(), before, strict=True))


@pytest.mark.parametrize(
    ("dtype", "update"), [("bfloat16", 2.0**-10), ("float16", 2.0**-13)]
)
def test_small_updates_are_lost_without_masters_only(dtype, update):
    steps = 1000
    exact = 1.0 - steps * update  # all partial sums are float32 numbers

    def trained(make_optimizer):
        weight = keras.Variable(np.ones(64), dtype=dtype)
        optimizer = make_optimizer(keras.optimizers.SGD(1.0))
        optimizer.build([weight])
        gradient = tf.fill([64], tf.cast(update, dtype))

        @tf.function
        def train():
            for _ in tf.range(steps):
                optimizer.apply([gradient], [weight])

        train()
        return optimizer, weight

    _, weight = trained(lambda optimizer: optimizer)
    assert (weight.numpy() == 1.0).all()  # not one update in a thousand
    for storage in ("float32", "remainder")[: 1 + (dtype == "bfloat16")]:
        optimizer, weight = trained(
            lambda o: mp.MasterWeightOptimizer(o, storage)  # noqa: B023
        )
        master = np.array(optimizer.master_of(weight))
        np.testing.assert_allclose(master, exact, rtol=0, atol=1e-6)
        check_equal([weight.numpy()], [rounded(master, dtype)])


WITH_EPSILON = [
    name
    for name in CLASSES
    if name == "Adafactor"  # which has two, by other names
    or "epsilon" in getattr(keras.optimizers, name)().get_config()
]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name, dtype, marks=[] if name == "Adam" else pytest.mark.slow
        )
        for name in WITH_EPSILON
        for dtype in ("float16", "bfloat16")
    ],
)
def test_constant_gradients_of_any_size_go_the_way_of_float32(name, dtype):
    """From 1e-7 to 1e4; plain Adam in float16 stalls, jumps or becomes nan."""
    sizes = (
        np.array([1e-7, 1e-5, 1e-3, 0.1, 10.0, 1e4])
        .astype(dtype)
        .astype("float32")
    )
    optimizer_class = getattr(keras.optimizers, name)

    def trained(wrapping, variable_dtype):
        # One variable each: some optimizers look at the whole of it.
        weights = [keras.Variable(1.0, dtype=variable_dtype) for _ in sizes]
        optimizer = wrapping(optimizer_class(learning_rate=2.0**-7))
        optimizer.build(weights)

        @tf.function
        def train():
            for _ in tf.range(20):
                optimizer.apply([tf.constant(size) for size in sizes], weights)

        train()
        return optimizer, weights

    _, expected = trained(lambda o: o, "float32")
    optimizer, weights = trained(mp.MasterWeightOptimizer, dtype)
    movement = [1.0 - float(e.numpy()) for e in expected]
    ours = [1.0 - m for m in masters_of(optimizer, weights)]
    np.testing.assert_allclose(ours, movement, rtol=0.01)


@KINDS
@pytest.mark.parametrize("way", ["assign", "set_weights", "load_weights"])
def test_masters_never_go_stale(storage, rounding, way, tmp_path):
    layer = keras.layers.Dense(3, dtype="bfloat16")
    model = keras.Sequential([keras.Input((4,)), layer])
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(0.0), storage, rounding
    )
    optimizer.build(model.trainable_variables)
    layer.kernel.assign(np.full((4, 3), 1.0))
    kernel = keras.Variable(np.ones((4, 3)) * 3.0, dtype="bfloat16").numpy()
    if way == "assign":
        layer.kernel.assign(kernel)
    elif way == "set_weights":
        layer.set_weights([kernel, np.zeros(3)])
    else:
        other = keras.models.clone_model(model)
        other.set_weights([kernel, np.zeros(3)])
        other.save_weights(tmp_path / "w.weights.h5")
        model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(
        np.array(optimizer.master_of(layer.kernel)), kernel.astype("float32")
    )
    gradients = [tf.ones((4, 3)), tf.ones(3)]
    optimizer.apply(gradients, model.trainable_variables)
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
    optimizer.learning_rate = 0.5
    optimizer.apply(gradients, model.trainable_variables)
    np.testing.assert_array_equal(
        np.array(optimizer.master_of(layer.kernel)), 2.5
    )


@MODES
def test_only_the_elements_that_were_assigned_to_start_again(mode):
    weight = keras.Variable(np.ones(4), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0))
    run = in_mode(
        mode, lambda: optimizer.apply([tf.fill([4], 2.0**-10)], [weight])
    )
    optimizer.build([weight])
    run()
    weight.assign([1.0, 1.0, 5.0, -0.0])
    run()
    np.testing.assert_array_equal(
        np.array(optimizer.master_of(weight)),
        np.float32([1 - 2**-9, 1 - 2**-9, 5 - 2**-10, -(2**-10)]),
    )


def test_a_remainder_is_at_most_half_an_ulp_off_until_it_is_synced():
    weight = keras.Variable(np.ones(1), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0), "remainder")
    optimizer.apply([tf.fill([1], 2.0**-10)], [weight])
    weight.assign([4.0])
    master = float(np.array(optimizer.master_of(weight))[0])
    assert 0 < abs(master - 4.0) <= 2.0**-6
    optimizer.sync()
    assert float(np.array(optimizer.master_of(weight))[0]) == 4.0


@STORAGES
@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf])
def test_what_is_assigned_is_never_nan(storage, value):
    """A stale remainder below 0, or beyond inf, is no number."""
    weight = keras.Variable(np.ones(3), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1e-4), storage)
    optimizer.apply([tf.constant([1.0, -1.0, 0.0])], [weight])
    weight.assign(np.full(3, value))
    master = np.array(optimizer.master_of(weight))
    np.testing.assert_array_equal(
        rounded(master).astype("float32"), np.full(3, value)
    )
    if value == 0:
        optimizer.apply([tf.zeros(3)], [weight])
        np.testing.assert_array_equal(
            weight.numpy().astype("float32"), np.zeros(3)
        )


def test_an_epsilon_is_judged_while_keras_builds_a_model():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, dtype="bfloat16")]
    )
    model.compile(mp.wrap("adam", master_weights=False), "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)


@STORAGES
def test_moving_averages_are_swapped_in_with_their_digits(storage):
    weights = make_weights()
    optimizer = mp.wrap(make("SGD", "ema"), storage=storage)
    optimizer.build(weights)
    optimizer.scale_loss(1.0)
    for i in range(3):
        optimizer.apply(
            [g * np.float32(2**15) for g in make_gradients(i)], weights
        )
    averages = [
        a.numpy()
        for a in optimizer.inner_optimizer._model_variables_moving_average
    ]
    optimizer.finalize_variable_values(weights)
    check_equal(masters_of(optimizer, weights), averages)
    check_equal([w.numpy() for w in weights], [rounded(a) for a in averages])


@pytest.mark.skipif(
    "optimizer._trainable_variables"
    not in inspect.getsource(keras.callbacks.SwapEMAWeights),
    reason="this Keras swaps the model's own variables, in their dtype",
)
@STORAGES
def test_keras_swaps_weights_and_moving_averages(storage):
    with mp.policy_scope("bfloat16"):
        layer = keras.layers.Dense(3, use_bias=False)
        model = keras.Sequential([keras.Input((4,)), layer])
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    mp.compile(model, mp.wrap(optimizer, storage=storage), "mse")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    for _ in range(3):  # not `fit`, which ends with the averages as weights
        model.train_on_batch(x, x[:, :3])
    (average,) = optimizer._model_variables_moving_average
    (master,) = model.optimizer.master_weights(model).values()
    before, expected = np.array(master), average.numpy()
    assert (rounded(before) != rounded(expected)).any()
    seen = []

    class Sees(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            seen.append(layer.kernel.numpy())

    callbacks = [keras.callbacks.SwapEMAWeights(), Sees()]
    # Of Keras's swap by sums and differences, in float32.
    model.evaluate(x, x[:, :3], verbose=0, callbacks=callbacks)
    np.testing.assert_allclose(
        seen[0].astype("float32"),
        rounded(expected).astype("float32"),
        rtol=0.01,
    )
    (master,) = model.optimizer.master_weights(model).values()
    np.testing.assert_allclose(np.array(master), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-5, atol=1e-6)
    fit = {"epochs": 2, "verbose": 0, "validation_data": (x, x[:, :3])}
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    losses = model.fit(x, x[:, :3], callbacks=[swap], **fit).history["loss"]
    assert np.isfinite(losses).all()


class Halved(keras.constraints.Constraint):
    def __call__(self, w):
        assert keras.backend.standardize_dtype(w.dtype) == "float32"
        return w * 0.75


@STORAGES
def test_constraints_act_on_masters(storage):
    weight = keras.Variable([1.0], dtype="bfloat16")
    weight.constraint = Halved()
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0), storage)
    optimizer.apply([tf.constant([2.0**-10])], [weight])
    expected = np.float32(0.75 * (1 - 2**-10))
    check_equal(masters_of(optimizer, [weight]), [[expected]])


@STORAGES
def test_penalties_act_on_masters(storage):
    """The gradient of a penalty is below half an ulp of that of the data."""
    layer = keras.layers.Dense(
        2,
        use_bias=False,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(2.0**-12),
        dtype="bfloat16",
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    optimizer = keras.optimizers.SGD(1.0)
    optimizer = mp.wrap(
        optimizer, storage=storage, dynamic=False, initial_scale=1.0
    )
    mp.compile(model, optimizer, lambda y, p: keras.ops.sum(p, axis=-1))
    x = np.ones((1, 4), "float32")
    loss = model.train_on_batch(x, np.zeros((1, 2)))
    # 8 outputs' sum, and the penalty of 8 weights.
    np.testing.assert_allclose(loss, 8.0 + 8 * 2.0**-12, rtol=1e-7)
    np.testing.assert_array_equal(
        np.array(model.optimizer.master_weights(model)[layer.kernel.path]),
        np.float32(1.0 - 1.0 - 2.0**-11),
    )


def test_penalties_of_models_without_masters_keep_their_gradient():
    def penalty_of(master_weights):
        layer = keras.layers.Dense(2, kernel_regularizer="l2", dtype="bfloat16")
        model = keras.Sequential([keras.Input((4,)), layer])
        for choice in ("auto", master_weights):  # the later one counts
            optimizer = mp.wrap("sgd", master_weights=choice)
            mp.compile(model, optimizer, "mse")
        with tf.GradientTape() as tape:
            penalty = tf.add_n(model.losses)
        return tape.gradient(penalty, layer.kernel.value)

    assert penalty_of("auto") is None
    assert penalty_of(False) is not None


@MODES
@KINDS
def test_only_touched_rows_of_a_table_are_converted(storage, rounding, mode):
    rows = 6
    values = np.arange(rows * 2).reshape(rows, 2) + 1.0
    table = keras.Variable(values, dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(1.0), storage, rounding
    )
    optimizer.build([table])
    slices = tf.IndexedSlices(
        tf.fill([3, 2], 2.0**-10), tf.constant([4, 1, 4]), tf.constant([6, 2])
    )
    run = in_mode(mode, lambda: optimizer.apply([slices], [table]))
    for _ in range(2):
        run()
    expected = values.astype("float32")
    expected[1] -= 2 * 2.0**-10
    expected[4] -= 4 * 2.0**-10
    masters = np.array(optimizer.master_of(table))
    if rounding == "nearest":
        np.testing.assert_array_equal(masters, expected)
        check_equal([table.numpy()], [rounded(expected)])
    np.testing.assert_array_equal(masters[[0, 2, 3, 5]], expected[[0, 2, 3, 5]])


@STORAGES
def test_rows_of_a_vector_and_any_number_of_slices(storage):
    table = keras.Variable([1.0, 1.0, 1.0], dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0), storage)
    optimizer.build([table])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(indices):
        values = tf.fill(tf.shape(indices), 2.0**-10)
        slices = tf.IndexedSlices(values, indices, tf.constant([3]))
        optimizer.apply([slices], [table])

    for indices in ([1], [], [1, 2, 1]):
        step(tf.constant(indices, tf.int32))
    np.testing.assert_array_equal(
        np.array(optimizer.master_of(table)),
        np.float32([1, 1 - 3 * 2**-10, 1 - 2**-10]),
    )


@STORAGES
def test_rows_that_were_assigned_to_start_again(storage):
    table = keras.Variable(np.ones((3, 2)), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0), storage)
    slices = tf.IndexedSlices(
        tf.fill([1, 2], 1.0), tf.constant([2]), tf.constant([3, 2])
    )
    optimizer.apply([slices], [table])
    table.assign(np.full((3, 2), 7.0))
    optimizer.apply([slices], [table])
    np.testing.assert_array_equal(
        table.numpy().astype("float32"), [[7, 7], [7, 7], [6, 6]]
    )


def test_float16_weights_saturate_and_are_counted():
    weight = keras.Variable([6e4, 6e4, 1.0], dtype="float16")
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=1.0)
    optimizer.build([weight])
    optimizer.scale_loss(1.0)
    for _ in range(2):
        optimizer.apply([tf.constant([-1e4, 1e3, 0.0])], [weight])
    np.testing.assert_array_equal(weight.numpy(), np.float16([65504, 58000, 1]))
    np.testing.assert_array_equal(
        np.array(optimizer.master_of(weight)), [8e4, 5.8e4, 1.0]
    )
    # One element, in each of two updates.
    assert int(optimizer.saturated_weights.numpy()) == 2
    optimizer.apply([tf.constant([3e4, 0.0, 0.0])], [weight])
    assert weight.numpy()[0] == 5e4  # and it comes back


def test_stochastic_updates_have_the_right_mean_and_can_be_resumed():
    count, update = 40_000, 2.0**-11
    weight = keras.Variable(np.ones(count), dtype="bfloat16")
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0),
        master_weights=False,
        rounding="stochastic",
        dynamic=False,
        initial_scale=1.0,
    )
    optimizer.build([weight])
    for _ in range(8):
        optimizer.apply([tf.fill([count], update)], [weight])
    values = weight.numpy().astype("float64")
    # Below 1 an ulp is 2**-8: a step down has the probability 1/8.
    error = values.std() / np.sqrt(count)
    assert abs(values.mean() - (1 - 8 * update)) < 4 * error
    assert 0 < error < 2.0**-8

    # Resumed after 8 steps, with other seeds in force, it is the same run.
    again = keras.Variable(weight.numpy(), dtype="bfloat16")
    resumed = mp.LossScaleOptimizer.from_config(optimizer.get_config())
    resumed.build([again])
    resumed.set_weights([v.numpy() for v in optimizer.variables])
    keras.utils.set_random_seed(999)
    for each, variable in ((optimizer, weight), (resumed, again)):
        each.apply([tf.fill([count], update)], [variable])
    check_equal([weight.numpy()], [again.numpy()])
    assert (weight.numpy().astype("float64") != values).any()


def test_a_step_rounds_once():
    """Weight decay, update and constraint: each would add its own error."""
    weight = keras.Variable(np.ones(4000), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(1.0, weight_decay=2.0**-10), None, "stochastic"
    )
    optimizer.apply([tf.fill([4000], 2.0**-10)], [weight])
    values, counts = np.unique(
        weight.numpy().astype("float64"), return_counts=True
    )
    # Half an ulp below 1: one of the neighbours of that.
    assert values.tolist() == [1 - 2.0**-8, 1.0]
    assert abs(counts[0] / 4000 - 0.5) < 4 * 0.5 / np.sqrt(4000)


def test_writes_in_a_branch_of_the_optimizer_do_not_share_random_bits():
    weight = keras.Variable(np.ones(4000), dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(
            1.0, weight_decay=2.0**-9, gradient_accumulation_steps=2
        ),
        None,
        "stochastic",
    )
    for _ in range(2):
        optimizer.apply([tf.fill([4000], 2.0**-9)], [weight])
    both = weight.numpy().astype("float64")
    # Rounded twice, by other draws: the mean is still right.
    assert len(np.unique(both)) == 3
    error = both.std() / np.sqrt(both.size)
    assert abs(both.mean() - (1 - 2.0**-8)) < 4 * error


class WritesInABranch(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.cond(
            tf.reduce_sum(gradient) > 0,
            lambda: super(WritesInABranch, self).update_step(
                gradient, variable, learning_rate
            ),
            lambda: None,
        )


def test_a_branch_of_an_optimizer_of_ones_own_is_refused():
    weight = keras.Variable([1.0], dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(WritesInABranch(1.0))
    optimizer.build([weight])
    with pytest.raises(RuntimeError, match="in a branch"):
        tf.function(lambda: optimizer.apply([tf.ones(1)], [weight]))()


@MODES
def test_micro_batches_that_only_add_up_write_no_weight(mode):
    """Masters are rounded once an update."""
    weight = keras.Variable([1.0], dtype="bfloat16")
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)
    )
    optimizer.build([weight])
    run = in_mode(
        mode, lambda: optimizer.apply([tf.constant([2.0**-10])], [weight])
    )
    for i in range(8):
        run()
        updates = (i + 1) // 4
        master = float(np.array(optimizer.master_of(weight))[0])
        assert master == 1.0 - updates * 2.0**-10
    accumulators = optimizer.inner_optimizer._accumulated_gradients
    assert [a.dtype for a in accumulators] == ["float32"]


@pytest.mark.parametrize(
    ("saved", "loaded", "way"),
    [
        ("float32", "remainder", "keras"),
        ("remainder", "float32", "tf"),
        ("remainder", "remainder", "keras"),
        pytest.param("float32", "remainder", "tf", marks=pytest.mark.slow),
        pytest.param("remainder", "float32", "keras", marks=pytest.mark.slow),
        pytest.param("float32", "float32", "keras", marks=pytest.mark.slow),
        pytest.param("float32", "float32", "tf", marks=pytest.mark.slow),
        pytest.param("remainder", "remainder", "tf", marks=pytest.mark.slow),
    ],
)
def test_masters_are_restored_into_any_storage(saved, loaded, way, tmp_path):
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")

    def make_model(storage):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(3, dtype="bfloat16", name="a"),
                keras.layers.Dense(2, name="b"),
            ]
        )
        model.compile(
            mp.wrap(keras.optimizers.Adam(0.01), storage=storage), "mse"
        )
        model.optimizer.build(model.trainable_variables)
        return model

    def train(model):
        model.fit(x, x[:, :2], 4, 2, verbose=0, shuffle=False)

    first = make_model(saved)
    train(first)
    second = make_model(loaded)
    if way == "keras":
        first.save(tmp_path / "model.keras")
        second.load_weights(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.optimizer.inner_optimizer.storage == saved
    else:
        path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(
            tmp_path / "checkpoint"
        )
        tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(
            path
        ).assert_consumed()

    def masters(model):
        return [
            np.array(v) for v in model.optimizer.master_weights(model).values()
        ]

    check_equal(masters(first), masters(second))
    train(first)
    train(second)
    check_equal(masters(first), masters(second))
    check_equal(
        [w.numpy() for w in first.weights], [w.numpy() for w in second.weights]
    )


def test_auto_looks_at_the_variables():
    narrow = keras.Variable([1.0], dtype="bfloat16")
    wide = keras.Variable([1.0])
    for choice, variables, stacks in (
        ("auto", [wide], False),
        ("auto", [wide, narrow], True),
        (True, [wide], True),
        (False, [narrow], False),
    ):
        optimizer = mp.wrap("sgd", master_weights=choice)
        optimizer.build(variables)
        inner = optimizer.inner_optimizer
        assert isinstance(inner, mp.MasterWeightOptimizer) is stacks
        if stacks:
            kept = [v.dtype for v in inner.variables[1:-2]]
            assert kept == ["float32"] * sum(v is narrow for v in variables)


def test_an_epsilon_of_zero_is_refused():
    narrow = keras.Variable([1.0], dtype="float16")
    optimizer = mp.wrap(
        keras.optimizers.Adam(epsilon=1e-8), master_weights=False
    )
    with pytest.raises(ValueError, match="epsilon=1e-08 for the float16"):
        optimizer.build([narrow])
    mp.wrap(keras.optimizers.Adam(epsilon=1e-4), master_weights=False).build(
        [narrow]
    )
    mp.wrap(keras.optimizers.Adam(epsilon=1e-8)).build([narrow])


def test_an_optimizer_that_is_built_already_is_left_alone_with_a_warning():
    narrow = keras.Variable([1.0], dtype="bfloat16")
    inner = keras.optimizers.SGD(momentum=0.5)
    inner.build([narrow])
    optimizer = mp.wrap(inner)
    with pytest.warns(mp.LossScaleWarning, match="before it was wrapped"):
        optimizer.build([narrow])
    assert optimizer.inner_optimizer is inner


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"storage": "float64"}, "storage='float64'"),
        ({"rounding": "up"}, "rounding='up'"),
        ({"storage": None}, "must be 'stochastic'"),
        (
            {"storage": "remainder", "rounding": "stochastic"},
            "must not be combined",
        ),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_choices(arguments, message):
    with pytest.raises(ValueError, match=message):
        mp.MasterWeightOptimizer(keras.optimizers.SGD(), **arguments)


def test_wrong_types():
    with pytest.raises(TypeError, match="seed='x'"):
        mp.MasterWeightOptimizer(keras.optimizers.SGD(), seed="x")
    with pytest.raises(TypeError, match="mp.wrap"):
        mp.MasterWeightOptimizer("sgd")
    with pytest.raises(ValueError, match="one master"):
        mp.MasterWeightOptimizer(
            mp.MasterWeightOptimizer(keras.optimizers.SGD())
        )
    with pytest.raises(ValueError, match="master_weights='yes'"):
        mp.wrap("sgd", master_weights="yes")
    with pytest.raises(ValueError, match="no masters then"):
        mp.wrap("sgd", master_weights=False, storage="float32")
    for wrapped in (
        mp.wrap("sgd"),
        mp.MasterWeightOptimizer(keras.optimizers.SGD()),
    ):
        with pytest.raises(ValueError, match=r"wrap `optimizer\.inner"):
            mp.wrap(wrapped, storage="remainder")
    with pytest.raises(TypeError, match=r"keras\.Variable"):
        mp.wrap("sgd").build([tf.Variable([1.0], dtype=tf.bfloat16)])


@pytest.mark.parametrize(
    "arguments", [{"storage": "remainder"}, {"rounding": "stochastic"}]
)
def test_float16_has_float32_masters_only(arguments):
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(), **arguments)
    with pytest.raises(ValueError, match="float16"):
        optimizer.build([keras.Variable([1.0], dtype="float16")])


def test_gradients_and_variables_must_match():
    optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD())
    weight = keras.Variable([1.0], dtype="bfloat16")
    with pytest.raises(ValueError, match="build"):
        optimizer.apply([tf.ones(1)])
    with pytest.raises(ValueError, match="one to one"):
        optimizer.apply([tf.ones(1), tf.ones(1)], [weight])


@KINDS
def test_config_is_the_identity(storage, rounding):
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.Adam(0.25), storage, rounding, seed=7, name="masters"
    )
    config = optimizer.get_config()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == config
    assert float(again.learning_rate) == 0.25
    wrapped = mp.wrap(optimizer)
    assert (
        mp.LossScaleOptimizer.from_config(wrapped.get_config()).get_config()
        == wrapped.get_config()
    )


def test_it_is_transparent():
    optimizer = mp.MasterWeightOptimizer(
        keras.optimizers.SGD(0.5, momentum=0.25, clipnorm=2.0)
    )
    assert optimizer.momentum == 0.25
    optimizer.learning_rate = 0.125
    optimizer.clipnorm = 3.0
    assert float(optimizer.inner_optimizer.learning_rate) == 0.125
    assert optimizer.inner_optimizer.clipnorm == 3.0
    assert int(optimizer.iterations) == 0


@pytest.mark.slow
def test_an_lstm_in_pure_bfloat16_is_built_and_trained():
    with mp.policy_scope(mp.Policy("bfloat16")):
        made = keras.Sequential(
            [
                keras.Input((5, 3)),
                keras.layers.LSTM(4),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
    wide = keras.Sequential(
        [keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)]
    )
    recurrent = made.layers[0].cell.recurrent_kernel
    product = recurrent.numpy().astype("float32")
    np.testing.assert_allclose(product @ product.T, np.eye(4), atol=0.03)
    x = np.random.default_rng(0).normal(size=(8, 5, 3)).astype("float32")
    for model in (made, mp.convert(wide, "bfloat16")):
        mp.compile(model, keras.optimizers.Adam(0.01), "mse")
        losses = model.fit(x, x[:, 0, :1], epochs=8, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        assert model.layers[0].cell.kernel.dtype == "bfloat16"


def test_a_float32_model_is_made_from_masters():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "relu"),
            keras.layers.Dense(2),
        ]
    )
    model = mp.convert(model, "bfloat16")
    mp.compile(model, keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    model.fit(x, x[:, :2], epochs=2, verbose=0)
    masters = model.optimizer.master_weights(model)
    exported = mp.export_float32(model)
    assert {v.dtype for v in exported.variables} == {"float32"}
    check_equal(
        [v.numpy() for v in exported.trainable_variables],
        [np.array(masters[v.path]) for v in model.trainable_variables],
    )
    expected = np.maximum(
        x @ masters["dense/kernel"] + masters["dense/bias"], 0
    )
    expected = expected @ masters["dense_1/kernel"] + masters["dense_1/bias"]
    np.testing.assert_allclose(exported(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="optimizer=None"):
        mp.export_float32(keras.Sequential([keras.Input((1,))]))


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
@STORAGES
def test_each_variable_may_have_another_optimizer(storage):
    def by_path(variable):
        if variable.name == "a":
            return keras.optimizers.Adam(0.1)
        return keras.optimizers.SGD(0.1, momentum=0.5)

    def make(dtype):
        return [keras.Variable(1.0, dtype=dtype, name=n) for n in "ab"]

    weights, copies = make("bfloat16"), make("float32")
    ours = mp.wrap(
        keras.optimizers.MultiOptimizer(by_path),
        storage=storage,
        dynamic=False,
        initial_scale=1.0,
    )
    theirs = keras.optimizers.MultiOptimizer(by_path)
    for _ in range(3):
        gradients = [tf.constant(0.01)] * 2
        ours.apply(gradients, weights)
        theirs.apply(gradients, copies)
    check_equal(masters_of(ours, weights), [c.numpy() for c in copies])
