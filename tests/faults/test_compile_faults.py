"""Faults of stock Keras's compile and fit: the right value of each in ours.

Most models run eagerly: to trace a step takes ten times as long as to train.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from fault_cases import kinds
from keras import layers

import tf_mixprec as mp
from tf_mixprec.training import compile as mp_compile


class ScalesBy1(layers.Layer):
    """Returns its inputs, and has one weight, so that there is a gradient."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale


def fit(model, x, y, optimizer=None, **arguments):
    """Returns the history of one epoch, by default without a step."""
    arguments.setdefault("run_eagerly", True)
    mp_compile(model, optimizer or keras.optimizers.SGD(0.0), **arguments)
    return model.fit(x, y, verbose=0).history


class Own(keras.Model):
    """A model with a `compile` and a step of its own."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.g = layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, x):
        return self.g(x)

    def compile(self, g_opt=None, opts=None):
        super().compile()
        self.g_opt = g_opt or opts["g"]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs = tf.cast(self(data[0]), "float32")
            loss = self.g_opt.scale_loss(tf.reduce_sum(outputs) * self.factor)
        variables = self.g.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.g_opt.apply_gradients(zip(gradients, variables, strict=True))
        return {"scaled": tf.reduce_sum(tf.abs(gradients[0]))}


@kinds(27, "argument", "g_opt", "opts")
def test_optimizers_of_a_custom_compile_are_wrapped(argument):
    factor = 1e-8 if argument == "g_opt" else 3e-8
    with mp.policy_scope("mixed_float16"):
        model = Own(factor)
    sgd = keras.optimizers.SGD(1e6)
    mp_compile(model, **{argument: {"g": sgd} if argument == "opts" else sgd})
    history = model.fit(
        np.ones((2, 3), "float32"), np.ones((2, 1)), batch_size=2, verbose=0
    ).history
    # Three weights, two rows; float16 rounds the scaled gradient by 2**-11.
    scaled = 3 * 2 * factor * 2.0**15
    np.testing.assert_allclose(history["scaled"], scaled, rtol=2**-10)
    np.testing.assert_allclose(
        model.g.kernel.numpy(), 1.0 - 1e6 * 2 * factor, rtol=1e-4
    )


@kinds(27, "name", "g_opt", "d_opt")
def test_an_optimizer_that_compile_makes_itself_is_warned_of(name):
    class Hidden(Own):
        def compile(self):
            super().compile(keras.optimizers.SGD())
            setattr(self, name, keras.optimizers.SGD())

    with mp.policy_scope("mixed_float16"):
        model = Hidden(1.0)
    with pytest.warns(mp.LossScaleWarning, match=name):
        mp_compile(model)


@kinds(33, "policy", "mixed_float16", "float16", "mixed_bfloat16")
@kinds(33, "where", "layer", "global", "nested")
def test_any_layer_decides_over_the_optimizer(policy, where):
    if where == "global":
        keras.config.set_dtype_policy(policy)
    layer = layers.Dense(3, dtype=policy if where != "global" else None)
    if where == "nested":
        layer = keras.Sequential([layer])
    model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(1)])
    mp_compile(model, "sgd", "mse")
    assert isinstance(model.optimizer, mp.LossScaleOptimizer)
    scale = 1.0 if policy == "mixed_bfloat16" else 2.0**15
    assert model.optimizer.loss_scale.numpy() == scale


@kinds(33, "factor", 1e-8, 3e-8)
def test_small_gradients_of_a_float16_layer_move_the_weights(factor):
    layer = layers.Dense(1, use_bias=False, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((3,)), layer])
    before = layer.kernel.numpy()
    fit(
        model,
        np.ones((4, 3), "float32"),
        np.zeros((4, 1), "float32"),
        keras.optimizers.SGD(1e6),
        loss=lambda y_true, y_pred: factor * (y_pred - y_true),
        run_eagerly=factor == 1e-8,
    )
    # The gradient of the mean of factor * x, x being 1; float16 rounds it.
    np.testing.assert_allclose(
        before - layer.kernel.numpy(), 1e6 * factor, rtol=2**-10
    )


@kinds(
    50,
    "name",
    "binary_crossentropy",
    "categorical_crossentropy",
    "kl_divergence",
    "binary_focal_crossentropy",
    "poisson",
)
def test_crossentropies_of_saturated_probabilities_are_finite(name):
    """Certain and wrong: 1 where 0 is right."""
    function = getattr(keras.losses, name)
    x, y = np.array([[1.0, 0.0]] * 4), np.array([[0.0, 1.0]] * 4)
    expected = np.mean(function(y.astype("float32"), x.astype("float32")))
    assert np.isfinite(expected)
    model = keras.Sequential(
        [keras.Input((2,)), ScalesBy1(dtype="mixed_float16")]
    )
    history = fit(model, x, y, loss=name, metrics=[function])
    assert len(history) == 2
    for value in history.values():
        np.testing.assert_allclose(value, expected, rtol=1e-5)


@kinds(51, "label", 2049, 4099, 65521)
def test_sparse_labels_are_not_rounded(label):
    layer = layers.Dense(65536, use_bias=False, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((1,)), layer])
    kernel = np.zeros((1, 65536), "float32")
    kernel[0, label] = 40.0
    model.set_weights([kernel])
    history = fit(
        model,
        np.ones((1, 1)),
        np.array([label]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    assert history["loss"][0] < 1e-6
    assert history["sparse_categorical_accuracy"] == [1.0]


PENALTY = keras.regularizers.L2(1e-6)
REGULARIZED = {
    "Dense": lambda: layers.Dense(
        64, kernel_initializer="ones", activity_regularizer=PENALTY
    ),
    "Activation": lambda: layers.Activation(
        "linear", activity_regularizer=PENALTY
    ),
    "ActivityRegularization": lambda: layers.ActivityRegularization(l2=1e-6),
    "nested": lambda: keras.Sequential(
        [
            layers.Reshape((1, 1)),
            layers.Conv1D(
                64, 1, kernel_initializer="ones", activity_regularizer=PENALTY
            ),
            layers.Flatten(),
        ]
    ),
}


@kinds(52, "name", *REGULARIZED)
def test_activity_regularizers_do_not_overflow(name):
    with mp.policy_scope("mixed_float16"):
        layer = REGULARIZED[name]()
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layer,
            layers.Dense(1, kernel_initializer="zeros"),
        ]
    )
    # One sample: not every Keras divides by their number.
    x, y = np.array([[1000.0]]), np.array([[0.0]])
    history = fit(model, x, y, loss="mse", run_eagerly=name != "Dense")
    # The square is 1e6 for one unit; float16 ends at 65504.
    units = 1 if "Activ" in name else 64
    np.testing.assert_allclose(
        history["loss"], 1e-6 * units * 1000.0**2, rtol=1e-5
    )


def exact_top_k(scores, labels, k):
    """Returns the share of labels among the k best, in NumPy."""
    best = np.argsort(-scores, axis=-1)[:, :k]
    hits = [a in row for a, row in zip(labels, best, strict=True)]
    return np.mean(hits)


WHERE = {"mixed_float16": "metrics", "mixed_bfloat16": "weighted_metrics"}
SPARSE = ("string", "object", "function")
TOP_K = {
    "string": "sparse_top_k_categorical_accuracy",
    "object": keras.metrics.SparseTopKCategoricalAccuracy,
    "function": keras.metrics.sparse_top_k_categorical_accuracy,
    "one_hot": "top_k_categorical_accuracy",
    "one_hot_object": keras.metrics.TopKCategoricalAccuracy,
}


@kinds(70, "policy", "mixed_float16", "mixed_bfloat16")
@kinds(70, "form", *TOP_K)
def test_top_k_metrics_take_16_bit_predictions(form, policy):
    # Integers, exact in 16 bits, in another order in each row.
    random = np.random.default_rng(0)
    scores = np.stack([random.permutation(10) for _ in range(16)])
    labels = np.arange(16) % 10
    metric = TOP_K[form]
    if isinstance(metric, type):
        metric = metric(k=5)
    model = keras.Sequential([keras.Input((10,)), ScalesBy1(dtype=policy)])
    history = fit(
        model,
        scores,
        labels if form in SPARSE else np.eye(10)[labels],
        loss=lambda y_true, y_pred: keras.ops.mean(y_pred, axis=-1),
        run_eagerly=(form, policy) != ("string", "mixed_float16"),
        **{WHERE[policy]: [metric]},
    )
    (name,) = set(history) - {"loss"}
    assert history[name][0] == pytest.approx(exact_top_k(scores, labels, 5))


OTHER_METRICS = {
    "auc": lambda: keras.metrics.AUC(name="auc"),
    "mean_io_u": lambda: keras.metrics.OneHotMeanIoU(2, name="mean_io_u"),
    "f1_score": lambda: keras.metrics.F1Score(name="f1_score"),
    "r2_score": lambda: keras.metrics.R2Score(name="r2_score"),
}


@kinds(70, "name", *OTHER_METRICS)
def test_other_metrics_equal_those_of_float32(name):
    x = np.arange(16).reshape(8, 2) % 5 / 4.0  # exact in 16 bits
    y = np.eye(2, dtype="float32")[np.arange(8) % 2]
    model = keras.Sequential(
        [keras.Input((2,)), ScalesBy1(dtype="mixed_float16")]
    )
    history = fit(model, x, y, loss="mse", metrics=[OTHER_METRICS[name]()])
    alone = OTHER_METRICS[name]()
    alone.update_state(y, x.astype("float32"))
    np.testing.assert_allclose(
        np.ravel(history[name][0]), np.ravel(alone.result()), rtol=1e-6
    )


@kinds(
    72,
    "name",
    "categorical_hinge",
    "huber",
    "log_cosh",
    "cosine_similarity",
    "mean_squared_logarithmic_error",
)
def test_losses_equal_those_of_float32(name):
    function = getattr(keras.losses, name)
    x, y = np.array([[0.25, 0.75]]), np.array([[0.0, 1.0]])
    model = keras.Sequential(
        [keras.Input((2,)), ScalesBy1(dtype="mixed_float16")]
    )
    history = fit(model, x, y, loss=name, metrics=[function])
    expected = np.mean(function(y.astype("float32"), x.astype("float32")))
    # The inputs are exact in float16, and all else is in float32.
    np.testing.assert_allclose(list(history.values()), expected, rtol=1e-6)


class AddsMean(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x) * 2.0)
        return x


ADDED = {
    "add_loss": lambda policy: AddsMean(),
    "two_losses": lambda policy: keras.Sequential([AddsMean(), AddsMean()]),
    "activity_regularizer": lambda policy: layers.Dense(
        2, activity_regularizer="l2", kernel_initializer="ones"
    ),
    "ActivityRegularization": lambda policy: layers.ActivityRegularization(
        l2=0.1
    ),
    "weight_regularizer": lambda policy: layers.Dense(
        2,
        kernel_regularizer="l2",
        kernel_initializer="ones",
        dtype=policy.removeprefix("mixed_"),  # the weights in 16 bits, too
    ),
}


def losses_of_two_steps(name, policy, compile, optimizer, eager=True):
    """Returns the losses before two steps of a model that adds losses."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [  # without an input: it is built, with its weights, by `fit`
            layers.Dense(2, kernel_initializer="ones"),
            ADDED[name](policy),
            layers.Dense(1, dtype="float32"),
        ]
    )
    compile(model, optimizer, "mse", run_eagerly=eager)
    x, y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")
    return model.fit(x, y, epochs=2, verbose=0).history["loss"]


@functools.cache
def float32_losses(name):
    sgd = keras.optimizers.SGD(0.001)
    return losses_of_two_steps(name, "float32", keras.Model.compile, sgd)


@kinds(77, "policy", "mixed_float16", "mixed_bfloat16")
@kinds(77, "name", *ADDED)
def test_a_16_bit_loss_next_to_a_float32_one_trains(name, policy):
    # A scale that overflows at none of these steps.
    optimizer = mp.wrap(keras.optimizers.SGD(0.001), initial_scale=16.0)
    eager = (name, policy) != ("add_loss", "mixed_float16")
    found = losses_of_two_steps(name, policy, mp_compile, optimizer, eager)
    # Weights near 1 that a step changes by 5%, rounded to 8 bits.
    np.testing.assert_allclose(found, float32_losses(name), rtol=2**-5)
    assert found[1] < found[0]


@kinds(55, "dtype", "float16", "bfloat16")
def test_an_epsilon_that_the_dtype_holds(dtype):
    """Keras's own is 1e-7 whatever the policy, and 1 - 1e-7 is 1."""
    one = np.array(1.0, dtype)
    assert one - np.array(keras.config.epsilon(), dtype) == one
    epsilon = np.array(mp.epsilon(dtype), dtype)
    assert one - epsilon < one
    assert np.sqrt(epsilon * epsilon) > 0
    assert mp.epsilon(dtype) >= 1e-4
