"""Wrong use of a training step is an error, when it happens."""

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers

import tf_mixprec as mp


def model(policy="float32"):
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.Dense(1, dtype=policy)]
    )


class Hook(mp.TrainStep):
    def __init__(self, loss_of, optimizer="sgd", **options):
        self.loss_of = loss_of
        super().__init__(model(), optimizer, **options)

    def compute_loss(self, model, batch):
        return self.loss_of(self, model(batch))


X = np.ones((4, 4), "float32")
Y = np.ones((4, 1), "float32")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"accumulation_steps": 0}, ValueError, "at least 1"),
        ({"accumulation_steps": 2.0}, TypeError, "must be an int"),
        ({"clip_norm": -1.0}, ValueError, "above 0"),
        ({"clip_value": "1"}, TypeError, "must be a float"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, ValueError, "Only one"),
        ({"loss_scales": {"a": None}}, ValueError, "overrides"),
        ({"jit_compile": "yes"}, ValueError, "jit_compile"),
    ],
)
def test_arguments(options, error, match):
    with pytest.raises(error, match=match):
        mp.TrainStep(model(), "sgd", "mse", **options)


def test_a_model():
    with pytest.raises(TypeError, match=r"must be a `keras\.Model`"):
        mp.TrainStep(layers.Dense(1), "sgd", "mse")
    with pytest.raises(TypeError, match=r"must be a `mp\.TrainStep`"):
        mp.fit(model(), (X, Y), epochs=1)


def test_an_optimizer_that_does_not_skip():
    optimizer = mp.wrap("sgd", skip_nonfinite=False)
    with pytest.raises(ValueError, match="skip_nonfinite"):
        mp.TrainStep(model(), optimizer, "mse")


def test_an_optimizer_that_accumulates():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="`accumulation_steps`"):
        mp.TrainStep(model(), optimizer, "mse")


def test_a_wrapped_optimizer_and_a_dtype():
    with pytest.raises(ValueError, match="wrapped already"):
        mp.TrainStep(
            model(), mp.wrap("sgd"), "mse", all_reduce_dtype="bfloat16"
        )


def test_another_strategy():
    strategy = strategies.mirrored(2)
    with pytest.raises(ValueError, match="in whose scope"):
        mp.TrainStep(model(), "sgd", "mse", strategy=strategy)
    with strategy.scope():
        inside = model()
    mp.TrainStep(inside, "sgd", "mse", strategy=strategy)


def test_a_hook_and_what_it_does_not_need():
    loss_of = lambda step, y: tf.reduce_mean(y)  # noqa: E731
    with pytest.raises(ValueError, match="overrides `compute_loss`"):
        Hook(loss_of, loss="mse")
    with pytest.raises(ValueError, match="they need predictions"):
        Hook(loss_of, metrics=["mae"])
    with pytest.raises(ValueError, match="must not be wrapped"):
        Hook(loss_of, mp.wrap("sgd"), loss_scales={"a": None})
    with pytest.raises(TypeError, match="must be a dict"):
        Hook(loss_of, loss_scales=["a"])


@pytest.mark.parametrize(
    ("loss_of", "error", "match"),
    [
        (lambda step, y: y, ValueError, "scalar float"),
        (lambda step, y: tf.constant(1), ValueError, "scalar float"),
        (
            lambda step, y: tf.reduce_mean(tf.cast(y, tf.float16)),
            ValueError,
            "float16 must be scaled",
        ),
        (
            lambda step, y: step.optimizer.scale_loss(tf.reduce_mean(y)),
            RuntimeError,
            "must return the loss itself",
        ),
        (
            lambda step, y: (tf.reduce_mean(y), {"loss": 1.0}),
            ValueError,
            "dict of scalars",
        ),
        (
            lambda step, y: (tf.reduce_mean(y), {"all": y}),
            ValueError,
            "must be scalars",
        ),
        (
            lambda step, y: {"a": tf.reduce_mean(y)},
            ValueError,
            "must return one loss",
        ),
        (lambda step, y: None, ValueError, "must return a loss"),
    ],
)
def test_what_a_hook_returns(loss_of, error, match):
    step = Hook(loss_of)
    with pytest.raises(error, match=match):
        step(X)


def test_names_of_losses():
    step = Hook(
        lambda step, y: {"b": tf.reduce_mean(y)}, loss_scales={"a": None}
    )
    with pytest.raises(ValueError, match="a dict with a,"):
        step(X)


def test_a_batch_that_is_too_small():
    step = mp.TrainStep(model(), "sgd", "mse", accumulation_steps=3)
    for _ in range(2):
        with pytest.raises(
            ValueError, match="2 examples, accumulation_steps=3"
        ):
            step(X[:2], Y[:2])
        step(X, Y)  # 4 in 3 parts
    with pytest.raises(ValueError, match="a multiple of `batch_size`"):
        mp.fit(step, (np.ones((6, 4)), np.ones((6, 1))), batch_size=4)


def test_xla_and_parts_that_differ():
    step = mp.TrainStep(
        model(), "sgd", "mse", accumulation_steps=3, jit_compile=True
    )
    with pytest.raises(ValueError, match="multiple of `accumulation_steps`"):
        step(X, Y)


def test_data_in_another_form():
    step = mp.TrainStep(model(), "sgd", "mse")
    for call in (
        lambda: step((X, Y)),
        lambda: step(X),
        lambda: mp.fit(step, [X, Y]),
    ):
        with pytest.raises(ValueError, match="`y` must be given"):
            call()
    with pytest.raises(ValueError, match="make an array of a list"):
        step(X.tolist(), Y.tolist())
    dataset = tf.data.Dataset.from_tensors((X, Y))
    with pytest.raises(TypeError, match="A step takes one batch"):
        step(dataset)
    with pytest.raises(ValueError, match="`loss` must be given"):
        mp.TrainStep(model(), "sgd")(X, Y)
    mp.fit(step, (X, Y), callbacks=keras.callbacks.History(), verbose=0)


def test_a_shared_scale_in_fit():
    step = mp.TrainStep(model(), mp.SharedLossScale().wrap("sgd"), "mse")
    with pytest.raises(ValueError, match="loop of your own"):
        mp.fit(step, (X, Y))


def test_a_batch_without_a_batch_axis():
    step = mp.TrainStep(model(), "sgd", "mse", accumulation_steps=2)
    with pytest.raises(ValueError, match="first axis is the batch"):
        step(np.float32(1), np.float32(1))


def test_fewer_examples_than_replicas():
    with strategies.mirrored(2).scope():
        step = mp.TrainStep(model(), "sgd", "mse")
    with pytest.raises(ValueError, match="an example for each replica"):
        step(X[:1], Y[:1])


def test_variables_that_the_optimizer_does_not_know():
    frozen = model()
    optimizer = mp.wrap("sgd")
    frozen.layers[0].trainable = False
    optimizer.build(frozen.trainable_variables)
    frozen.layers[0].trainable = True
    step = mp.TrainStep(frozen, optimizer, "mse")
    with pytest.raises(ValueError, match="built on every trainable variable"):
        step(X, Y)


def test_nothing_to_train():
    frozen = model()
    frozen.trainable = False
    step = mp.TrainStep(frozen, "sgd", "mse")
    with pytest.raises(ValueError, match="a trainable variable"):
        step(X, Y)


def test_a_model_that_is_compiled_anew():
    step = mp.TrainStep(model(), "sgd", "mse")
    step(X, Y)
    other = mp.TrainStep(step.model, "sgd", "mae")
    other(X, Y)
    with pytest.raises(RuntimeError, match="compiled anew"):
        step(X, Y)
    with pytest.raises(RuntimeError, match="compiled anew"):
        mp.fit(step, (X, Y), epochs=1)


def test_a_model_that_keras_compiles_anew():
    """It trains as Keras does, and not with the step."""
    step = mp.TrainStep(model(), "sgd", "mse", clip_global_norm=1e-9)
    step(X, Y)
    step.model.compile(step.optimizer, "mse")
    before = step.model.get_weights()[0]
    step.model.fit(X, Y, verbose=0)
    assert np.abs(step.model.get_weights()[0] - before).max() > 1e-6
    mp.compile(step.model, step.optimizer, "mse")
    assert "make_train_function" not in vars(step.model)
    step.model.fit(X, Y, verbose=0)


def test_data_in_a_tuple():
    step = mp.TrainStep(model(), "sgd", "mse")
    with pytest.raises(ValueError, match="a tuple of 4"):
        mp.fit(step, (X, Y, Y, Y), epochs=1)
