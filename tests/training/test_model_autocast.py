"""Models in float32 whose operations train, test and predict in 16 bits."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from strategies import mirrored

import tf_mixprec as mp

CLASSES = 3


class Raw(keras.Model):
    """Raw TensorFlow beside layers, losses that are added, and statistics."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(
            16, "relu", activity_regularizer="l2", kernel_regularizer="l2"
        )
        self.normal = layers.BatchNormalization()
        self.head = self.add_weight((16, CLASSES), "glorot_uniform")

    def call(self, x, training=None):
        h = self.normal(self.first(x), training=training)
        self.add_loss(tf.reduce_mean(h**2) * 0.01)
        return tf.matmul(h, self.head)


def data(rows=32):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 8)).astype("float32")
    return x, random.integers(0, CLASSES, rows)


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def is_rounded(value, dtype="bfloat16"):
    value = tf.convert_to_tensor(value)
    return bool(
        tf.reduce_all(tf.cast(tf.cast(value, dtype), value.dtype) == value)
    )


def fitted(autocast, **options):
    keras.utils.set_random_seed(1)
    model = Raw()
    report = mp.compile(
        model,
        keras.optimizers.SGD(0.05),
        crossentropy(),
        metrics=["accuracy"],
        autocast=autocast,
        **options,
    )
    x, y = data()
    history = model.fit(x, y, 16, epochs=2, shuffle=False, verbose=0)
    return model, report, history.history["loss"]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("bfloat16", {}),
        ("float16", {"safe_skip": True}),
        *(
            pytest.param(dtype, {option: True}, marks=pytest.mark.slow)
            for dtype in ("bfloat16", "float16")
            for option in ("jit_compile", "run_eagerly")
        ),
    ],
    ids=str,
)
def test_fit_evaluate_and_predict(dtype, options):
    model, report, losses = fitted(dtype, **options)
    reference, plain, expected = fitted(None, **options)
    assert (report.autocast, plain.autocast) == (dtype, None)
    assert f"autocast: {dtype}" in str(report)
    wrapped = "wrapped" if dtype == "float16" else "skips"
    assert report.optimizers == {"optimizer": wrapped}
    # Other bits, the same training: added losses and penalties included.
    assert losses != expected
    np.testing.assert_allclose(losses, expected, rtol=0.01)
    x, y = data()
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0)[0],
        reference.evaluate(x, y, verbose=0)[0],
        rtol=0.01,
    )
    predictions = model.predict(x, verbose=0)
    assert predictions.dtype == np.float32
    assert is_rounded(predictions, dtype)
    for ours, theirs in zip(model.weights, reference.weights, strict=True):
        assert ours.dtype == "float32"
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=0.02)
    # A call outside of them is the model's own.
    assert not is_rounded(model(x), dtype)


def test_losses_are_added_once():
    model, _, _ = fitted("bfloat16")
    x, y = data(16)
    model.train_on_batch(x, y)
    assert len(model.losses) == 3  # two were added, and one regularizer
    reference, _, _ = fitted(None)
    reference.set_weights(model.get_weights())
    model.reset_metrics()
    reference.reset_metrics()
    ours = model.test_on_batch(x, y, return_dict=True)
    theirs = reference.test_on_batch(x, y, return_dict=True)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=0.01)


def test_masks_go_in_and_out():
    def make():
        keras.utils.set_random_seed(2)
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(7, 8, mask_zero=True),
                layers.LSTM(8, return_sequences=True),
                layers.Dense(1),
            ]
        )

    ids = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]])
    targets = np.ones((2, 5, 1))
    losses = []
    for autocast in (None, "bfloat16"):
        model = make()
        mp.compile(model, "sgd", "mse", autocast=autocast)
        losses.append(model.train_on_batch(ids, targets))
    # Without the mask it would be another loss altogether.
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.01)
    assert losses[0] != losses[1]


def test_compiled_again_without():
    model, _, _ = fitted("bfloat16")
    x, _ = data()
    assert mp.compile(model, "sgd", crossentropy()).autocast is None
    assert not is_rounded(model.predict(x, verbose=0))
    mp.compile(model, "sgd", crossentropy(), autocast="bfloat16")
    assert is_rounded(model.predict(x, verbose=0))
    model.compile("sgd", crossentropy())  # by Keras
    assert not is_rounded(model.predict(x, verbose=0))


def test_a_loaded_model_is_compiled_so_again(tmp_path):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    mp.compile(model, "sgd", crossentropy(), autocast="bfloat16")
    x, y = data()
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    predictions = loaded.predict(x, verbose=0)
    assert is_rounded(predictions)
    np.testing.assert_array_equal(predictions, model.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("dtype", "steps", "replicas"),
    [
        ("bfloat16", 2, 2),
        ("float16", 1, 1),
        pytest.param("bfloat16", 1, 1, marks=pytest.mark.slow),
        pytest.param("bfloat16", 1, 2, marks=pytest.mark.slow),
        pytest.param("float16", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_train_step(dtype, steps, replicas):
    strategy = mirrored(2) if replicas == 2 else tf.distribute.get_strategy()
    results = []
    for autocast in (None, dtype):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model, optimizer = Raw(), keras.optimizers.SGD(0.05)
        step = mp.TrainStep(
            model,
            optimizer,
            crossentropy(),
            autocast=autocast,
            strategy=strategy,
            accumulation_steps=steps,
        )
        x, y = data()
        logs = [step(x, y) for _ in range(2)][-1]
        results.append((float(logs["loss"]), float(logs["grad_norm"])))
        is_low = is_rounded(step.predict(x), dtype)
        assert is_low == (autocast is not None)
        assert float(logs["loss_scale"]) == (
            32768.0 if autocast == "float16" else 1.0
        )
    assert results[0] != results[1]
    np.testing.assert_allclose(results[1], results[0], rtol=0.03)


def test_a_loss_of_ones_own():
    class Step(mp.TrainStep):
        def compute_loss(self, model, batch, training=True):
            x, y = batch
            logits = model(x, training=training)
            assert logits.dtype == tf.float32
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            return tf.reduce_mean(losses), {"largest": tf.reduce_max(logits)}

    keras.utils.set_random_seed(1)
    x, y = data()
    step = Step(Raw(), "sgd", autocast="bfloat16")
    logs = step(x, y)
    assert is_rounded(logs["largest"])
    assert is_rounded(step.evaluate((x, y))["largest"])
    assert is_rounded(step.predict(x))


def test_a_skipped_step_leaves_no_trace():
    keras.utils.set_random_seed(1)
    model = Raw()
    step = mp.TrainStep(model, "sgd", crossentropy(), autocast="float16")
    x, y = data()
    step(x, y)
    before = [np.array(v) for v in model.weights]
    x[0, 0] = 1e30  # infinite in float16
    assert bool(step(x, y)["skipped"])
    for value, variable in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_layers_in_16_bits_are_refused():
    with mp.policy_scope("mixed_bfloat16"):
        model = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    with pytest.raises(
        ValueError, match="layers are float32.*autocast='float16'"
    ):
        mp.compile(model, "sgd", "mse", autocast="float16")
    with pytest.raises(ValueError, match="layers are float32"):
        mp.TrainStep(model, "sgd", "mse", autocast="float16")


def test_a_wrong_dtype_is_refused():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    for wrong in ("int8", True):
        with pytest.raises(ValueError, match="None for no autocast"):
            mp.compile(model, "sgd", "mse", autocast=wrong)


def test_layers_that_ask_other_replicas_are_refused():
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), layers.BatchNormalization(synchronized=True)]
        )
        with pytest.raises(ValueError, match="synchronized=False"):
            mp.compile(model, "sgd", "mse", autocast="bfloat16")


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_off(dtype):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    report = mp.compile(model, "sgd", crossentropy(), autocast=dtype)
    assert report.autocast is None
    assert report.optimizers == {"optimizer": "as given"}
    assert "autocast" not in str(report)


def test_auto_is_what_the_device_gains_from():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    report = mp.compile(model, "sgd", crossentropy(), autocast="auto")
    expected = mp.recommended_policy().policy.compute_dtype
    assert report.autocast == (None if expected == "float32" else expected)
