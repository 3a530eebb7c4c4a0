"""`TrainStep` against Keras's `fit`, NumPy, and itself with other data."""

import itertools

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp

BATCH = 8


def data(count=6, seed=0, shape=(6,)):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count * BATCH, *shape)).astype("float32")
    y = x.reshape(len(x), -1)[:, :2].copy()
    return x, y


def mlp(policy="float32", normalized=False):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        norm = [layers.BatchNormalization(momentum=0.5)] if normalized else []
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "tanh"),
                *norm,
                layers.Dense(2, dtype="float32"),
            ]
        )


def cnn(policy="float32"):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        return keras.Sequential(
            [
                keras.Input((4, 4, 2)),
                layers.Conv2D(4, 3, padding="same"),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(2, dtype="float32"),
            ]
        )


def transformer(policy="float32"):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        inputs = keras.Input((4, 8))
        x = layers.MultiHeadAttention(2, 4)(inputs, inputs)
        x = layers.LayerNormalization()(x + inputs)
        x = layers.GlobalAveragePooling1D()(layers.Dense(8, "gelu")(x))
        return keras.Model(inputs, layers.Dense(2, dtype="float32")(x))


def lstm(policy="float32"):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        head = layers.Dense(2, dtype="float32")
        return keras.Sequential([keras.Input((4, 3)), layers.LSTM(5), head])


MODELS = {
    "cnn": (cnn, (4, 4, 2)),
    "transformer": (transformer, (4, 8)),
    "lstm": (lstm, (4, 3)),
}


def state(step):
    inner = step.optimizer.inner_optimizer
    variables = [*step.model.weights, *inner.variables]
    return [keras.ops.convert_to_numpy(v) for v in variables]


def check_equal(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def check_close(a, b, tolerance=2e-6):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


def run(step, x, y, size=BATCH):
    return [
        step(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)
    ]


@pytest.mark.parametrize(
    ("name", "policy", "jit_compile"),
    [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.slow)
        for quick in [
            [
                ("cnn", "float32", False),
            ]
        ]
        for case in itertools.product(
            MODELS,
            ("float32", "mixed_float16", "mixed_bfloat16"),
            (False, True),
        )
        if case != ("lstm", "mixed_bfloat16", True)  # minutes to compile
    ],
)
def test_it_equals_fit_bit_for_bit(name, policy, jit_compile):
    make, shape = MODELS[name]
    x, y = data(4, shape=shape)
    optimizers = [mp.wrap(keras.optimizers.Adam(0.01)) for _ in range(3)]
    fitted = make(policy)
    fitted.compile(
        optimizers[0], "mse", metrics=["mae"], jit_compile=jit_compile
    )
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    expected = fitted.fit(x, y, epochs=2, **options).history
    options["epochs"] = 2

    steps = [
        mp.TrainStep(
            make(policy), o, "mse", metrics=["mae"], jit_compile=jit_compile
        )
        for o in optimizers[1:]
    ]
    history = mp.fit(steps[0], (x, y), **options).history
    for _ in range(2):
        steps[1].reset_metrics()
        logs = run(steps[1], x, y)
    for step in steps:
        check_equal(step.model.get_weights(), fitted.get_weights())
        check_equal(
            [v.numpy() for v in step.optimizer.variables],
            [v.numpy() for v in fitted.optimizer.variables],
        )
    for key, values in expected.items():
        assert history[key] == values
    assert float(logs[-1]["mae"]) == expected["mae"][-1]


@pytest.mark.parametrize(
    ("name", "count", "jit_compile"),
    [
        ("transformer", 3, False),
        pytest.param("transformer", 4, False, marks=pytest.mark.slow),
        pytest.param("transformer", 4, True, marks=pytest.mark.slow),
        pytest.param("lstm", 4, False, marks=pytest.mark.slow),
        pytest.param("lstm", 3, False, marks=pytest.mark.slow),
    ],
)
def test_micro_batches_equal_the_batch(name, count, jit_compile):
    """Also where they differ in size: 8 examples in 3 parts."""
    make, shape = MODELS[name]
    x, y = data(4, shape=shape)
    results = []
    for steps in (1, count):
        step = mp.TrainStep(
            make(),
            keras.optimizers.SGD(0.1, momentum=0.9),
            "mse",
            metrics=["mae"],
            accumulation_steps=steps,
            jit_compile=jit_compile,
        )
        logs = run(step, x, y)
        results.append((state(step), logs))
    (whole, whole_logs), (parts, parts_logs) = results
    check_close(whole, parts)
    for a, b in zip(whole_logs, parts_logs, strict=True):
        for key in ("loss", "grad_norm", "mae"):
            np.testing.assert_allclose(a[key], b[key], rtol=1e-5)


def test_batch_normalization_sees_micro_batches():
    """Each of them moves the statistics once."""
    x, y = data(1)
    step = mp.TrainStep(
        mlp(normalized=True), "sgd", "mse", accumulation_steps=2
    )
    kernel, bias = step.model.layers[0].get_weights()
    mean, variance = np.zeros(8), np.ones(8)
    for part in (x[:4], x[4:]):
        h = np.tanh(part.astype("float64") @ kernel + bias)
        mean = 0.5 * mean + 0.5 * h.mean(0)
        variance = 0.5 * variance + 0.5 * h.var(0)
    step(x, y)
    norm = step.model.layers[1]
    np.testing.assert_allclose(norm.moving_mean, mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(norm.moving_variance, variance, rtol=1e-5)


def gradient_of_mse(kernel, x, y):
    """The gradient of the mean of (x @ kernel - y)**2, in float64."""
    x, y = x.astype("float64"), y.astype("float64")
    return 2 * x.T @ (x @ kernel - y) / y.size


CLIPS = {
    "clip_global_norm": lambda g, c: g * min(1, c / np.linalg.norm(g)),
    "clip_norm": lambda g, c: g * min(1, c / np.linalg.norm(g)),
    "clip_value": lambda g, c: np.clip(g, -c, c),
}


@pytest.mark.parametrize(
    ("strategy_name", "clip", "bound", "accumulation_steps", "scale"),
    [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.slow)
        for quick in [
            [
                ("none", "clip_global_norm", 0.3, 1, 1.0),
                ("mirrored_2", "clip_global_norm", 0.3, 2, 2.0**10),
                ("none", "clip_global_norm", 100.0, 2, 2.0**10),
                ("none", "clip_norm", 0.3, 2, 2.0**10),
                ("none", "clip_value", 0.3, 1, 1.0),
            ]
        ]
        for case in itertools.product(
            ("none", "mirrored_2"), CLIPS, (0.3, 100.0), (1, 2), (1.0, 2.0**10)
        )
    ],
)
def test_clipping(strategy_name, clip, bound, accumulation_steps, scale):
    """After the sum over replicas and micro-batches, of unscaled gradients."""
    x, y = data(1)
    strategy = strategies.make(strategy_name)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(2, use_bias=False)]
        )
        step = mp.TrainStep(
            model,
            mp.wrap(
                keras.optimizers.SGD(0.5), dynamic=False, initial_scale=scale
            ),
            "mse",
            accumulation_steps=accumulation_steps,
            jit_compile=False,
            **{clip: bound},
        )
    (kernel,) = model.get_weights()
    gradient = gradient_of_mse(kernel, x, y)
    expected = kernel - 0.5 * CLIPS[clip](gradient, bound)
    logs = step(x, y)
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5)
    norm = np.linalg.norm(gradient)
    np.testing.assert_allclose(logs["grad_norm"], norm, rtol=1e-5)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_clipping_of_sparse_gradients(accumulation_steps):
    """Slices of one row add up before a norm is taken."""
    ids = np.array([[0, 0], [0, 1], [3, 3], [0, 3]])
    y = np.full((4, 2, 1), 5.0, "float32")
    model = keras.Sequential(
        [keras.Input((2,), dtype="int32"), layers.Embedding(4, 1)]
    )
    step = mp.TrainStep(
        model,
        keras.optimizers.SGD(1.0),
        "mse",
        accumulation_steps=accumulation_steps,
        clip_global_norm=0.1,
    )
    (table,) = model.get_weights()
    gradient = np.zeros((4, 1))
    for row in ids.ravel():
        gradient[row] += 2 * (table[row] - 5.0) / ids.size
    norm = np.linalg.norm(gradient)
    logs = step(ids, y)
    np.testing.assert_allclose(logs["grad_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(
        model.get_weights()[0], table - gradient * 0.1 / norm, rtol=1e-5
    )


def test_a_norm_that_float32_does_not_hold():
    """It skips the step where one is to clip by it, and else does not."""
    model = mlp()
    x, y = data(1)
    for clip in (None, 1.0):
        step = mp.TrainStep(
            model, keras.optimizers.SGD(0.0), "mse", clip_global_norm=clip
        )
        logs = step(x, y * 1e25)
        assert np.isinf(logs["grad_norm"])
        assert bool(logs["skipped"]) == (clip is not None)


@pytest.mark.parametrize(
    ("policy", "jit_compile", "strategy_name"),
    [
        ("mixed_float16", False, "none"),
        pytest.param("float32", False, "mirrored_2", marks=pytest.mark.slow),
        pytest.param("mixed_float16", True, "none", marks=pytest.mark.slow),
        pytest.param(
            "mixed_float16", False, "mirrored_2", marks=pytest.mark.slow
        ),
        pytest.param("float32", True, "one_device", marks=pytest.mark.slow),
    ],
)
def test_a_bad_micro_batch_is_left_out(policy, jit_compile, strategy_name):
    """As if the batch had been without it, bit for bit."""
    x, y = data(4)
    spoiled = x.copy()
    # Of 4 micro-batches on each replica the third, on the last replica only.
    replicas = 2 if strategy_name == "mirrored_2" else 1
    size = 4 * BATCH // replicas
    parts = [
        np.arange(r * size + i * size // 4, r * size + (i + 1) * size // 4)
        for r in range(replicas)
        for i in (0, 1, 3)
    ]
    keep = np.concatenate(parts)
    spoiled[(replicas - 1) * size + 2 * size // 4] = np.nan
    results = []
    for rows, count in ((spoiled, 4), (x[keep], 3)):
        with strategies.make(strategy_name).scope():
            optimizer = mp.wrap(
                keras.optimizers.Adam(0.01), initial_scale=256.0
            )
            step = mp.TrainStep(
                mlp(policy, normalized=True),
                optimizer,
                "mse",
                metrics=["mae"],
                accumulation_steps=count,
                clip_global_norm=0.1,
                jit_compile=jit_compile,
            )
        target = y if count == 4 else y[keep]
        results.append((step, step(rows, target)))
    (step, logs), (expected, expected_logs) = results
    check_equal(state(step), state(expected))
    for key in ("loss", "mae", "grad_norm"):
        assert float(logs[key]) == float(expected_logs[key])
    assert not bool(logs["skipped"])
    # The step was made, and the scale backs off nevertheless.
    to_numpy = keras.ops.convert_to_numpy
    assert to_numpy(step.optimizer.loss_scale) == 128.0
    assert to_numpy(step.optimizer.skipped_steps) == 0
    assert to_numpy(step.optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("accumulation_steps", "jit_compile"), [(1, True), (2, False)]
)
def test_a_skipped_step_leaves_no_trace(accumulation_steps, jit_compile):
    x, y = data(1)
    step = mp.TrainStep(
        mlp("mixed_float16", normalized=True),
        mp.wrap("adam", initial_scale=2.0**8),
        "mse",
        metrics=["mae"],
        accumulation_steps=accumulation_steps,
        jit_compile=jit_compile,
    )
    step(x, y)
    before, metrics = state(step), step.model.get_metrics_result()
    logs = step(x * np.inf, y)
    check_equal(state(step), before)
    assert float(step.model.get_metrics_result()["mae"]) == metrics["mae"]
    assert bool(logs["skipped"])
    assert float(logs["loss_scale"]) == 2.0**7
    assert np.isnan(logs["loss"])
    assert np.isnan(logs["grad_norm"])
    totals = step.epoch_logs()
    assert totals["skipped"] == 1
    assert np.isfinite(totals["grad_norm"])


def test_seeds_go_on_in_a_skipped_step():
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dropout(0.5, seed=1), layers.Dense(2)]
    )
    step = mp.TrainStep(model, "sgd", "mse")
    x, y = data(1)
    step(x, y)
    (seed,) = model.layers[0].variables
    before = seed.numpy()
    assert bool(step(x * np.nan, y)["skipped"])
    assert (seed.numpy() != before).any()


def test_a_statistic_does_not_become_infinite():
    """Where a variance overflows, and every gradient is finite or zero."""
    x, y = data(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.BatchNormalization(momentum=0.5),
            layers.Dense(2),
        ]
    )
    step = mp.TrainStep(model, keras.optimizers.SGD(0.01), "mse")
    x[0, 0] = 1e30
    logs = step(x, y)
    assert not bool(logs["skipped"])
    mean, variance = model.layers[0].non_trainable_weights
    assert variance.numpy()[0] == 1.0
    assert np.isfinite(mean.numpy()).all()
    assert (variance.numpy()[1:] != 1.0).all()


@pytest.mark.parametrize(
    ("strategy_name", "accumulation_steps"),
    [
        ("mirrored_2", 2),
        pytest.param("mirrored_2", 1, marks=pytest.mark.slow),
        pytest.param("mirrored_4", 2, marks=pytest.mark.slow),
    ],
)
def test_replicas_equal_one(strategy_name, accumulation_steps):
    x, y = data(8)
    results = []
    for name in ("none", strategy_name):
        with strategies.make(name).scope():
            step = mp.TrainStep(
                mlp(),
                keras.optimizers.Adam(0.01),
                "mse",
                metrics=["mae"],
                accumulation_steps=accumulation_steps,
                clip_global_norm=0.1,
                jit_compile=False,
            )
        logs = run(step, x, y, 2 * BATCH)
        results.append((state(step), logs[-1]))
    check_close(results[0][0], results[1][0])
    for key in ("loss", "grad_norm", "mae"):
        np.testing.assert_allclose(
            results[0][1][key], results[1][1][key], rtol=1e-5
        )


@pytest.mark.slow
def test_distributed_data_is_taken_as_it_is():
    strategy = strategies.mirrored(2)
    with strategy.scope():
        step = mp.TrainStep(mlp(), "sgd", "mse", jit_compile=False)
    x, y = data(2)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(batches)
    given = [step(*batch)["loss"].numpy() for batch in distributed]
    with strategy.scope():
        step = mp.TrainStep(mlp(), "sgd", "mse", jit_compile=False)
    assert given == [logs["loss"].numpy() for logs in run(step, x, y)]


def counting_model():
    """Returns a list, and a model that adds the shape to it when called."""
    calls = []

    class Counting(layers.Layer):
        def call(self, x):
            calls.append(x.shape)
            return x

    return calls, keras.Sequential(
        [keras.Input((6,)), layers.Dense(2), Counting()]
    )


def test_one_trace_for_each_shape_and_one_for_all_micro_batches():
    calls, model = counting_model()
    step = mp.TrainStep(
        model, "sgd", "mse", accumulation_steps=4, jit_compile=True
    )
    x, y = data(2)
    calls.clear()
    for _ in range(3):
        step(x, y)
    # Keras builds loss and metrics with a symbolic batch first.
    assert calls == [(16, 2), (4, 2)]
    step(x[:BATCH], y[:BATCH])
    assert calls == [(16, 2), (4, 2), (2, 2)]


def test_one_trace_for_all_sizes_without_xla():
    calls, model = counting_model()
    step = mp.TrainStep(model, "sgd", "mse", jit_compile=False)
    x, y = data(2)
    calls.clear()
    for size in (16, 8, 5):
        step(x[:size], y[:size])
    assert [tuple(shape) for shape in calls] == [(16, 2), (None, 2)]


@pytest.mark.slow
def test_losses_of_outputs_weigh_batches_as_keras_does():
    """Whatever the sizes of the batches."""
    inputs = keras.Input((6,))
    outputs = {k: layers.Dense(2, name=k)(inputs) for k in ("a", "b")}
    x, y = data(2)
    histories = []
    for kind in (mp.TrainStep, None):
        model = keras.Model(inputs, outputs)
        arguments = (keras.optimizers.SGD(0.0), {"a": "mse", "b": "mae"})
        options = {"batch_size": 5, "shuffle": False, "verbose": 0}
        targets = {"a": y, "b": y}
        if kind is None:
            model.compile(*arguments, jit_compile=False)
            histories.append(model.fit(x, targets, **options).history)
        else:
            step = kind(model, *arguments, jit_compile=False)
            histories.append(mp.fit(step, (x, targets), **options).history)
    for key, expected in histories[1].items():
        np.testing.assert_allclose(histories[0][key], expected, rtol=1e-6)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_float64_stays_float64(accumulation_steps):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(2, use_bias=False, dtype="float64")]
    )
    step = mp.TrainStep(
        model,
        keras.optimizers.SGD(0.5),
        "mse",
        accumulation_steps=accumulation_steps,
        clip_global_norm=0.5,
    )
    (kernel,) = model.get_weights()
    x, y = (each.astype("float64") for each in data(1))
    gradient = gradient_of_mse(kernel, x, y)
    step(tf.constant(x), tf.constant(y))
    expected = kernel - 0.5 * CLIPS["clip_global_norm"](gradient, 0.5)
    (moved,) = model.get_weights()
    assert moved.dtype == np.float64
    # The loss is Keras's, in float32; the factor of the clipping too.
    np.testing.assert_allclose(moved, expected, rtol=1e-6)


def test_masters():
    """16-bit variables get float32 masters, and gradients their sums."""
    model = mp.convert(mlp(), "bfloat16")
    step = mp.TrainStep(
        model, keras.optimizers.SGD(2.0**-12), "mse", accumulation_steps=2
    )
    x, y = data(1)
    for _ in range(4):
        step(x, y)
    masters = step.optimizer.master_weights(model)
    kernel = model.layers[0].kernel
    assert keras.backend.standardize_dtype(kernel.dtype) == "bfloat16"
    master = masters[kernel.path].numpy()
    assert (master != master.astype(kernel.numpy().dtype)).any()


def test_policy():
    model = mlp()
    step = mp.TrainStep(model, "sgd", "mse", policy="mixed_bfloat16")
    assert step.model is not model
    assert step.model.layers[0].compute_dtype == "bfloat16"
    x, y = data(1)
    assert not bool(step(x, y)["skipped"])


def test_evaluate_and_predict():
    x, y = data(2)
    step = mp.TrainStep(mlp("mixed_float16"), "sgd", "mse", metrics=["mae"])
    run(step, x, y)
    result = step.evaluate((x, y), batch_size=BATCH)
    predictions = step.predict(x)
    assert set(result) == {"loss", "mae"}
    np.testing.assert_allclose(
        result["loss"], np.mean((predictions - y) ** 2), rtol=1e-5
    )


def test_losses_of_layers_and_dicts_of_outputs():
    inputs = keras.Input((6,))
    hidden = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
    x = hidden(inputs)
    model = keras.Model(
        inputs, {"a": layers.Dense(1)(x), "b": layers.Dense(2)(x)}
    )
    x, y = data(1)
    targets = {"a": y[:, :1], "b": y}
    weights = {"a": 0.5, "b": 2.0}
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    step = mp.TrainStep(
        model, "sgd", {"a": "mse", "b": "mae"}, loss_weights=weights
    )
    clone.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights=weights)
    expected = clone.train_on_batch(x, targets, return_dict=True)
    logs = step(x, targets)
    assert float(logs["loss"]) == expected["loss"]
    check_equal(model.get_weights(), clone.get_weights())


def test_sample_weights():
    x, y = data(1)
    weights = np.arange(BATCH, dtype="float32")
    step = mp.TrainStep(mlp(), "sgd", "mse")
    clone = mlp()
    clone.compile("sgd", "mse")
    expected = clone.train_on_batch(x, y, weights)
    assert float(step(x, y, weights)["loss"]) == expected
