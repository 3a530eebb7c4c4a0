"""A skipped step of `fit` leaves no trace."""

import itertools

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp

BATCH = 8
MODES = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "loop": {"jit_compile": False, "steps_per_execution": 2},
}
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]
QUICK = [
    ("float32", "graph", "target"),
    ("mixed_float16", "graph", "input"),
    ("mixed_bfloat16", "loop", "input"),
    ("mixed_bfloat16", "eager", "target"),
]


def batches(count=6):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count * BATCH, 6)).astype("float32")
    return x, x[:, :2].copy()


def make_model(policy="mixed_float16"):
    keras.utils.set_random_seed(0)
    with mp.policy_scope(policy):
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8),
                layers.BatchNormalization(momentum=0.5),
                layers.ReLU(),
                layers.Dense(2, dtype="float32"),
            ]
        )


def compiled(policy="mixed_float16", optimizer=None, **options):
    model = make_model(policy)
    # A fixed scale, so that runs with and without bad steps have the same.
    optimizer = optimizer or mp.wrap(
        keras.optimizers.Adam(0.01), dynamic=False, initial_scale=256.0
    )
    mp.compile(model, optimizer, "mse", metrics=["mae"], **options)
    return model


def fit(model, x, y, **options):
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, **options).history


def check_equal(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def state(model):
    return [
        v.numpy()
        for v in [*model.weights, *model.optimizer.inner_optimizer.variables]
    ]


@pytest.mark.parametrize(
    ("policy", "mode", "where"),
    [
        pytest.param(
            policy, mode, where, marks=[] if case in QUICK else pytest.mark.slow
        )
        for case in itertools.product(POLICIES, MODES, ("input", "target"))
        for policy, mode, where in [case]
    ],
)
def test_fit_is_that_without_the_bad_batches(policy, mode, where):
    """Weights, slots, moving statistics, loss and metrics, bit for bit."""
    x, y = batches()
    bad = [1, 4]
    clean = np.setdiff1d(np.arange(6), bad)
    keep = np.concatenate(
        [np.arange(i * BATCH, (i + 1) * BATCH) for i in clean]
    )
    spoiled = {"input": x.copy(), "target": y.copy()}
    for i in bad:
        spoiled[where][i * BATCH] = (np.nan, np.inf)[i % 2]
    given = {"input": x, "target": y, where: spoiled[where]}

    options = {"safe_skip": True, **MODES[mode]}
    model, expected = compiled(policy, **options), compiled(policy, **options)
    history = fit(model, given["input"], given["target"], epochs=2)
    expected_history = fit(expected, x[keep], y[keep], epochs=2)
    check_equal(state(model), state(expected))
    assert history == expected_history
    assert int(model.optimizer.skipped_steps) == 4


def test_without_it_the_statistics_and_the_loss_are_nan():
    """The tests above can fail."""
    x, y = batches()
    x[0] = np.nan
    model = compiled()
    history = fit(model, x, y)
    assert np.isnan(history["loss"]).all()
    assert np.isnan(model.layers[1].moving_mean.numpy()).any()
    assert np.isfinite(model.layers[0].kernel.numpy()).all()
    model = compiled(safe_skip=True)
    assert np.isfinite(fit(model, x, y)["loss"]).all()


def test_an_overflow_that_scaling_recovers_from_does_not_stop_the_run():
    x, y = batches()
    model = compiled(
        optimizer=mp.wrap("adam", initial_scale=2.0**24), safe_skip=True
    )
    y = y * 1e4
    history = fit(
        model, x, y, epochs=4, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    assert len(history["loss"]) == 4
    assert np.isfinite(history["loss"][-1])
    assert int(model.optimizer.skipped_steps) > 0
    assert int(model.optimizer.iterations) > 0


def test_an_epoch_of_bad_steps_only():
    x, y = batches(2)
    model = compiled(safe_skip=True)
    model.optimizer.build(model.trainable_variables)
    before = state(model)
    history = fit(model, x * np.nan, y)
    check_equal(state(model), before)
    # 0 would be the best loss of all.
    assert np.isnan(history["loss"]).all()
    assert np.isnan(history["mae"]).all()
    losses = fit(model, np.concatenate([x * np.nan, x]), y.repeat(2, 0))["loss"]
    assert np.isfinite(losses).all()


def test_random_seeds_go_on():
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dropout(0.5, seed=1), layers.Dense(2)]
    )
    mp.compile(model, "sgd", "mse", safe_skip=True)
    (seed,) = model.layers[0].variables
    before = seed.numpy()
    x, y = batches(1)
    model.train_on_batch(x * np.nan, y)
    assert int(model.optimizer.skipped_steps) == 1
    assert (seed.numpy() != before).any()


@pytest.mark.slow
@strategies.SEVERAL
def test_on_several_replicas(strategy_name):
    x, y = batches()
    spoiled = x.copy()
    spoiled[2 * BATCH - 1] = np.nan  # on the last replica only
    keep = np.r_[:BATCH, 2 * BATCH : 6 * BATCH]
    results = []
    for given, target in ((spoiled, y), (x[keep], y[keep])):
        with strategies.make(strategy_name).scope():
            model = compiled(safe_skip=True, jit_compile=False)
        results.append((fit(model, given, target, epochs=2), model))
    (history, model), (expected_history, expected) = results
    check_equal(state(model), state(expected))
    assert history == expected_history


class Gan(keras.Model):
    """Two optimizers in a `train_step` of its own."""

    def __init__(self):
        super().__init__()
        self.left = layers.Dense(2, dtype="mixed_bfloat16")
        self.right = layers.Dense(2, dtype="mixed_bfloat16")
        self.norm = layers.BatchNormalization()
        self.tracker = keras.metrics.Mean("loss")

    def call(self, x):
        return self.left(self.norm(x)) + self.right(x)

    def compile(self, left_optimizer, right_optimizer):
        super().compile()
        self.left_optimizer = left_optimizer
        self.right_optimizer = right_optimizer

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        for layer, optimizer in (
            (self.left, self.left_optimizer),
            (self.right, self.right_optimizer),
        ):
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = tf.reduce_mean(
                    tf.square(tf.cast(prediction, tf.float32) - y)
                )
                scaled = optimizer.scale_loss(loss)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(scaled, variables), variables)
            self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_a_train_step_of_ones_own():
    x, y = batches()
    model = Gan()
    model(x[:BATCH])
    mp.compile(
        model,
        left_optimizer=keras.optimizers.SGD(),
        right_optimizer=keras.optimizers.SGD(),
        safe_skip=True,
    )
    x[BATCH] = np.nan
    history = fit(model, x, y)
    assert np.isfinite(history["loss"]).all()
    assert np.isfinite(model.norm.moving_mean.numpy()).all()
    assert int(model.left_optimizer.skipped_steps) == 1


def test_it_is_saved_loaded_and_taken_back(tmp_path):
    x, y = batches()
    model = compiled(safe_skip=True)
    fit(model, x, y)
    model.save(tmp_path / "model.keras")
    x[0] = np.nan
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.isfinite(fit(loaded, x, y)["loss"]).all()
    mp.compile(loaded, "sgd", "mse")
    assert np.isnan(fit(loaded, x, y)["loss"]).all()
    again = compiled(safe_skip=True)
    again.compile("sgd", "mse")  # by Keras
    fit(again, *batches())


def test_the_report_says_so():
    report = mp.compile(make_model("float32"), "sgd", "mse", safe_skip=True)
    assert report.safe_skip
    assert report.optimizers == {"optimizer": "skips"}
    assert "leave no trace" in str(report)


def test_there_must_be_an_optimizer_that_skips():
    class Own(keras.Model):
        def compile(self):
            super().compile()

    model = Own()
    with pytest.raises(ValueError, match="attributes of the model"):
        mp.compile(model, safe_skip=True)
    optimizer = mp.wrap("sgd", skip_nonfinite=False)
    with pytest.raises(ValueError, match=r"skip_nonfinite=\[False\]"):
        mp.compile(make_model(), optimizer, "mse", safe_skip=True)
    with pytest.raises(TypeError, match="safe_skip='no'"):
        mp.compile(make_model(), "sgd", "mse", safe_skip="no")
