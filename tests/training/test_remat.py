"""Layers that are computed again for the gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from strategies import mirrored
from tensorflow.python.eager import context

import tf_mixprec as mp

CLASSES = 3


def convolutions():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=7),
            layers.Conv2D(4, 3, activity_regularizer="l2"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def attention():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 8, mask_zero=True)(inputs)
    y = layers.MultiHeadAttention(2, 4, dropout=0.3, seed=3)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    x = layers.Dense(8, "gelu", name="hidden")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def recurrent():
    return keras.Sequential(
        [keras.Input((5, 4)), layers.LSTM(6), layers.Dense(CLASSES)]
    )


MODELS = {each.__name__: each for each in (convolutions, attention, recurrent)}


def data(model, rows=8):
    random = np.random.default_rng(0)
    shape = (rows, *model.input_shape[1:])
    if "int" in model.inputs[0].dtype:
        x = random.integers(0, 9, shape)
    else:
        x = random.normal(size=shape).astype("float32")
    return x, random.integers(0, CLASSES, rows)


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(name, remat, *, steps=3, strategy=None, **options):
    """Returns the weights and the logs after some steps."""
    keras.utils.set_random_seed(1)
    scope = strategy or tf.distribute.get_strategy()
    with scope.scope():
        model, optimizer = MODELS[name](), keras.optimizers.SGD(0.1)
    step = mp.TrainStep(
        model,
        optimizer,
        crossentropy(),
        remat=remat,
        strategy=strategy,
        **options,
    )
    x, y = data(model)
    logs = [step(x, y) for _ in range(steps)]
    weights = [np.array(v) for v in step.model.weights]
    return weights, [float(each["loss"]) for each in logs], step


def check_equal(name, remat, tolerance=1e-6, **options):
    weights, losses, _ = trained(name, remat, **options)
    expected, of_plain, _ = trained(name, None, **options)
    np.testing.assert_allclose(losses, of_plain, rtol=100 * tolerance)
    for ours, plain in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, plain, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_the_same(name):
    """Dropout, statistics, seeds, masks and penalties included."""
    check_equal(name, True)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulation_steps": 2},
        {"jit_compile": True},
        {"policy": "mixed_bfloat16"},
        {"policy": "mixed_float16"},
        {"autocast": "bfloat16"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    [
        "convolutions",
        pytest.param("attention", marks=pytest.mark.slow),
        pytest.param("recurrent", marks=pytest.mark.slow),
    ],
)
def test_with_other_options(name, options):
    wide = {"accumulation_steps"} == set(options)
    check_equal(name, True, 1e-6 if wide else 2e-3, **options)


def test_on_two_replicas():
    check_equal("convolutions", True, strategy=mirrored(2))


def products(step, x, y):
    """How many products are in the graph that the first step runs."""
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # what is left of other functions
        step(x, y)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [f.post_optimization_graph.node for f in metadata.function_graphs]
    return sum(
        "Conv2D" in node.op and "Backprop" not in node.op
        for node in max(graphs, key=len)
    )


def test_it_is_computed_again():
    """Grappler does not see that it is the same."""
    counts = []
    for remat in (None, True):
        _, _, step = trained("convolutions", remat, steps=0, jit_compile=False)
        counts.append(products(step, *data(step.model)))
    # What comes out of the second is not needed: nothing follows it there.
    assert counts == [2, 3]


def test_layers_by_their_paths():
    check_equal("attention", ["hidden", "multi_head_attention.*"])
    check_equal("attention", ["multi_head_attention.*/.*"])  # in one of them
    with pytest.raises(ValueError, match="Received: 'no.such'; the paths are"):
        trained("attention", ["no.such"])
    with pytest.raises(TypeError, match="list of regular expressions"):
        trained("attention", [3])


class Clipped(layers.Layer):
    """Has a gradient of its own, with a product."""

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], shape[-1]))

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)

        @tf.custom_gradient
        def function(x):
            return x * 1.0, lambda dy: tf.matmul(dy, kernel) + tf.exp(x) * 0.1

        return function(tf.matmul(x, kernel))


def test_gradients_of_ones_own_are_in_float32():
    results = []
    for remat in (None, True):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((4,)), Clipped(), Clipped(), layers.Dense(CLASSES)]
        )
        step = mp.TrainStep(
            model, keras.optimizers.SGD(0.1), crossentropy(), remat=remat
        )
        x, y = data(model)
        step(x, y)
        results.append([np.array(v) for v in model.weights])
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-6)


class NoiseInLoop(layers.Layer):
    """Draws random numbers in a loop: nobody knows how many."""

    def call(self, x):
        return tf.map_fn(lambda row: row + tf.random.normal(()) * 0, x)


def test_a_layer_that_cannot_be():
    model = keras.Sequential(
        [keras.Input((4,)), NoiseInLoop(name="noise"), layers.Dense(CLASSES)]
    )
    x, y = data(model)
    step = mp.TrainStep(model, "sgd", crossentropy(), remat=[".*noise"])
    with pytest.raises(ValueError, match="leave it out.*/noise'.*has a state"):
        step(x, y)
    step = mp.TrainStep(model, "sgd", crossentropy(), remat=True)
    assert np.isfinite(float(step(x, y)["loss"]))


def test_a_step_that_is_skipped_leaves_no_trace():
    weights, _, step = trained("convolutions", True, steps=1)
    x, y = data(step.model)
    x[0, 0, 0] = np.inf
    assert bool(step(x, y)["skipped"])
    for variable, before in zip(step.model.weights, weights, strict=True):
        if "seed" not in variable.path:
            np.testing.assert_array_equal(np.array(variable), before)


def test_a_loss_of_ones_own():
    class Step(mp.TrainStep):
        def compute_loss(self, model, batch, training=True):
            x, y = batch
            logits = model(x, training=training)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            return tf.reduce_mean(losses)

    values = []
    for remat in (None, True):
        keras.utils.set_random_seed(1)
        step = Step(recurrent(), "sgd", remat=remat)
        x, y = data(step.model)
        values.append([float(step(x, y)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(values[1], values[0], rtol=1e-6)
