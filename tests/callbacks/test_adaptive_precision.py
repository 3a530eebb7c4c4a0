"""Layers that fail in 16 bits are moved to float32, others are not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp

BATCH = 8


@keras.saving.register_keras_serializable(package="adaptive")
class Overflow(keras.layers.Layer):
    """Squares beyond 65504 inside, and nothing large outside."""

    def call(self, x):
        power = keras.ops.mean(keras.ops.square(x * 1000.0), axis=-1)
        return (
            x * 1000.0 / keras.ops.sqrt(power + 1.0)[:, None]
            + power[:, None] * 0.0
        )


@keras.saving.register_keras_serializable(package="adaptive")
class Around(keras.layers.Layer):
    """Code of a user's around a layer that overflows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.weak = Overflow(name="weak")
        self.dense = keras.layers.Dense(8, name="dense")

    def call(self, x):
        return x + self.weak(x) + self.dense(x)


def make(*layers, policy="mixed_float16"):
    """Returns a model; `layers` are made under the policy."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh", name="first"),
            *[layer() for layer in layers],
            keras.layers.Dense(8, "tanh", name="second"),
            keras.layers.Dense(1, dtype="float32", name="head"),
        ],
        name="model",
    )


def overflow():
    return Overflow(name="weak")


@keras.saving.register_keras_serializable(package="adaptive")
class Vanishing(keras.layers.Layer):
    """Returns what it is given; gradients behind it are tiny."""

    def call(self, x):
        @tf.custom_gradient
        def identity(x):
            return tf.identity(x), lambda upstream: upstream * 1e-7 * 1e-7

        return identity(x)


def vanishing():
    return Vanishing(name="weak")


def data(batches):
    x = np.random.default_rng(0).normal(size=(batches * BATCH, 4))
    return x.astype("float32"), x.sum(axis=1, keepdims=True).astype("float32")


def fit(model, callback, how="fit", batches=12, epochs=1, **options):
    """Trains in one of the ways there are; returns history and callback."""
    arguments = {"verbose": 0, "shuffle": False, "batch_size": BATCH}
    arguments |= {"epochs": epochs, "callbacks": [callback], **options}
    if how == "step":
        step = mp.TrainStep(model, "sgd", "mse")
        return mp.fit(step, data(batches), **arguments)
    if not model.compiled:
        mp.compile(model, "sgd", "mse", safe_skip=how == "safe")
    return model.fit(*data(batches), **arguments)


def dtypes(model):
    return [layer.compute_dtype for layer in model.layers]


SLOW_STEP = pytest.param("step", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "how", ["fit", pytest.param("safe", marks=pytest.mark.slow), "step"]
)
def test_a_layer_that_overflows_is_moved_and_training_goes_on(how):
    model = make(overflow)
    adaptive = mp.callbacks.AdaptivePrecision(patience=2)
    before = [np.array(w) for w in model.get_weights()]
    history = fit(model, adaptive, how)
    (move,) = adaptive.records
    assert (move.step, move.layers, move.reason) == (2, ("weak",), "overflow")
    assert move.to_float32
    assert dtypes(model) == ["float16", "float32", "float16", "float32"]
    assert int(model.optimizer.skipped_steps) == 2
    assert int(model.optimizer.iterations) == 10
    for old, new in zip(before, model.get_weights(), strict=True):
        assert not np.array_equal(old, new)
    assert history.history["float32_layers"] == [1]
    assert adaptive.float32_layers == ("weak",)


@pytest.mark.parametrize("how", ["fit", SLOW_STEP])
def test_layers_whose_gradients_vanish_are_moved(how):
    model = make(vanishing)
    adaptive = mp.callbacks.AdaptivePrecision(every=2, patience=2)
    fit(model, adaptive, how, batches=8)
    (move,) = adaptive.records
    assert (move.step, move.reason) == (4, "lost gradients")
    assert set(move.layers) == {"first", "weak"}
    assert move.value == pytest.approx(1.0, abs=0.1)
    assert dtypes(model) == ["float32", "float32", "float16", "float32"]
    lost = mp.diagnose(model, *data(1)).of_role("gradient of the weight")
    assert max(each.lost for each in lost) < 0.1


@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16",
        pytest.param("mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_nothing_moves_in_a_sound_run(policy):
    model = make(policy=policy)
    adaptive = mp.callbacks.AdaptivePrecision(every=2, patience=1)
    mp.compile(model, mp.wrap("sgd", initial_scale=2.0**24), "mse")
    history = fit(model, adaptive, batches=16)
    if policy == "mixed_float16":  # the scale came down, which passes
        assert int(model.optimizer.skipped_steps) > 0
    assert adaptive.records == ()
    assert history.history["float32_layers"] == [0]
    assert "float32" not in dtypes(model)[:-1]


def test_bad_data_are_no_reason():
    model = make()
    x, y = data(8)
    x[BATCH:] = np.nan
    adaptive = mp.callbacks.AdaptivePrecision(patience=1)
    mp.compile(model, "sgd", "mse")
    model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[adaptive]
    )
    assert adaptive.records == ()


@pytest.mark.slow
def test_moves_are_bounded():
    names = ("weak_1", "weak_2", "weak_3")
    model = make(*[lambda name=name: Overflow(name=name) for name in names])
    adaptive = mp.callbacks.AdaptivePrecision(patience=1, max_moves=2)
    fit(model, adaptive, batches=6)
    assert [move.layers for move in adaptive.records] == [
        ("weak_1",),
        ("weak_2",),
    ]
    assert int(model.optimizer.iterations) == 0


def test_each_move_is_one_trace(monkeypatch):
    model = make(overflow)
    mp.compile(model, "sgd", "mse")
    made = []
    make_function = model.make_train_function
    model.make_train_function = lambda force=False: (
        made.append(force),
        make_function(force),
    )[1]
    adaptive = mp.callbacks.AdaptivePrecision(patience=2)
    fit(model, adaptive)
    # The first of `fit`, the one that begins to keep batches, and the move.
    assert len([force for force in made if force]) == 2


@pytest.mark.slow
def test_a_layer_goes_back_when_it_has_been_fine():
    model = make(overflow)
    adaptive = mp.callbacks.AdaptivePrecision(patience=1, back_after=3)

    class CalmDown(keras.callbacks.Callback):
        """Makes what goes into the weak layer small, after some steps."""

        def on_train_batch_end(self, batch, logs=None):
            if batch == 8:
                first = self.model.get_layer("first")
                first.set_weights([w * 1e-3 for w in first.get_weights()])

    optimizer = mp.wrap(keras.optimizers.SGD(0.0), initial_scale=1.0)
    mp.compile(model, optimizer, "mse")
    x, y = data(16)
    model.fit(
        x,
        y,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[CalmDown(), adaptive],
    )
    there, back = adaptive.records[:2]
    assert (there.step, there.to_float32) == (1, True)
    # Refused at step 4, so tried again 6 steps later.
    assert (back.step, back.reason) == (10, "fine in 16 bits")
    assert not back.to_float32


@pytest.mark.slow
def test_code_of_a_user_goes_on_getting_16_bits():
    model = make(lambda: Around(name="around"))
    adaptive = mp.callbacks.AdaptivePrecision(patience=1)
    fit(model, adaptive, batches=4)
    assert adaptive.float32_layers == ("around/weak",)
    weak = model.get_layer("around").weak
    assert weak.compute_dtype == "float32"
    assert weak.dtype_policy.output_dtype == "float16"
    assert int(model.optimizer.iterations) == 3


@pytest.mark.slow
def test_the_saved_model_has_the_new_policy(tmp_path):
    model = make(overflow)
    adaptive = mp.callbacks.AdaptivePrecision(patience=1)
    fit(model, adaptive, batches=4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert dtypes(loaded) == dtypes(model)
    assert loaded.get_layer("weak").dtype_policy.name == "float32"
    x, _ = data(1)
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.slow
def test_validation_sees_the_moved_layer():
    model = make(overflow)
    adaptive = mp.callbacks.AdaptivePrecision(patience=2)
    history = fit(model, adaptive, epochs=2, validation_data=data(1))
    assert np.isfinite(history.history["val_loss"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "`every` must be at least 1"),
        ({"patience": 1.5}, "`patience` must be an int"),
        ({"threshold": "1"}, "`threshold` must be a float"),
        ({"threshold": 1.0}, "`threshold` must be at least 0 and below 1"),
        ({"back_after": 0}, "`back_after` must be at least 1"),
        ({"max_moves": 0}, "`max_moves` must be at least 1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mp.callbacks.AdaptivePrecision(**options)


def test_an_optimizer_that_skips_nothing():
    model = make(policy="float32")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="must be used with an"):
        fit(model, mp.callbacks.AdaptivePrecision())
