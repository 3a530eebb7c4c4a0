"""An LSTM that multiplies its inputs at once is an LSTM."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.layers.recurrent import LSTM

SHAPE = (3, 6, 5)


def pair(policy="mixed_bfloat16", **arguments):
    """Returns the layer and Keras's, with the same weights."""
    arguments = {"units": 4, "use_bias": True, **arguments, "dtype": policy}
    ours, keras_layer = LSTM(**arguments), keras.layers.LSTM(**arguments)
    for layer in (ours, keras_layer):
        layer.build(SHAPE)
    random = np.random.default_rng(0)
    weights = [random.normal(size=w.shape) * 0.5 for w in ours.get_weights()]
    for layer in (ours, keras_layer):
        layer.set_weights(weights)
    return ours, keras_layer


def inputs():
    return np.random.default_rng(1).normal(size=SHAPE).astype("float32")


def check_close(a, b, tolerance=2.0**-6):
    a, b = (
        [np.asarray(x).astype("float32") for x in keras.tree.flatten(each)]
        for each in (a, b)
    )
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"use_bias": False},
        {"return_sequences": True, "return_state": True},
        {"go_backwards": True},
        {"unroll": True},
        {"stateful": True},
        {"activation": "relu", "recurrent_activation": "hard_sigmoid"},
        {"dropout": 0.5, "recurrent_dropout": 0.5},
    ],
)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_it_equals_that_of_keras(arguments, policy):
    ours, theirs = pair(policy, **arguments)
    for _ in range(2):  # the second time from another state if it is stateful
        check_close(ours(inputs()), theirs(inputs()))


def test_masks_and_initial_states():
    ours, theirs = pair(return_sequences=True, zero_output_for_mask=True)
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2, [0] * 6], bool)
    state = [np.full((3, 4), 0.5, "float32"), np.ones((3, 4), "float32")]
    options = {"mask": mask, "initial_state": state}
    check_close(ours(inputs(), **options), theirs(inputs(), **options))


def test_in_float32_it_is_that_of_keras():
    ours, theirs = pair("float32")
    np.testing.assert_array_equal(ours(inputs()), theirs(inputs()))


def test_gradients_are_nearer_to_float32():
    """The kernel's is summed over time in float32, not in 16 bits."""
    (ours, theirs), (exact, _) = pair(), pair("float32")
    upstream = np.random.default_rng(2).normal(size=(3, 4)).astype("float32")
    gradients = []
    for layer in (ours, theirs, exact):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.cast(layer(inputs()), tf.float32) * upstream
            )
        variables = [v.value for v in layer.trainable_variables]
        gradients.append([g.numpy() for g in tape.gradient(loss, variables)])
    for mine, wide in zip(gradients[0], gradients[2], strict=True):
        scale = np.abs(wide).max()
        np.testing.assert_allclose(mine, wide, atol=scale * 2.0**-5)
    errors = [np.abs(g[0] - gradients[2][0]).mean() for g in gradients[:2]]
    assert errors[0] < 1.1 * errors[1]


def test_the_loop_has_one_product():
    found = {}
    for layer, name in zip(pair(), ("ours", "theirs"), strict=True):
        function = tf.function(lambda x, layer=layer: layer(x))
        graph = function.get_concrete_function(tf.zeros(SHAPE)).graph
        library = graph.as_graph_def().library.function
        found[name] = [
            sum(node.op in ("MatMul", "BatchMatMulV2") for node in f.node_def)
            for f in library
            if "body" in f.signature.name
        ]
    assert found == {"ours": [1], "theirs": [2]}


def test_a_length_that_is_not_known():
    ours, theirs = pair(return_sequences=True)
    function = tf.function(
        ours, input_signature=[tf.TensorSpec((None, None, 5))]
    )
    for length in (2, 6):
        x = inputs()[:, :length]
        check_close(function(tf.constant(x)), theirs(x))


def test_convert_takes_it_and_gives_that_of_keras_back(tmp_path):
    model = keras.Sequential(
        [keras.Input(SHAPE[1:]), keras.layers.LSTM(4), keras.layers.Dense(2)]
    )
    mixed = mp.convert(model, "mixed_bfloat16")
    assert type(mixed.layers[0]) is LSTM
    check_close(mixed(inputs()), model(inputs()))
    mixed.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs()), mixed(inputs()))
    back = mp.convert(loaded, "float32")
    assert type(back.layers[0]) is keras.layers.LSTM
    np.testing.assert_array_equal(back(inputs()), model(inputs()))


def test_the_recurrent_kernel_is_cast_outside_of_the_loop():
    ours, _ = pair()
    function = tf.function(lambda x: ours(x))
    graph = function.get_concrete_function(
        tf.TensorSpec((3, None, 5), tf.float32)
    ).graph
    (loop,) = (op for op in graph.get_operations() if "While" in op.type)
    name = loop.get_attr("body").name
    (body,) = (
        f
        for f in graph.as_graph_def().library.function
        if f.signature.name == name
    )
    kinds = [node.op for node in body.node_def]
    assert kinds.count("MatMul") == 1
    assert "Cast" not in kinds


def test_the_recurrent_gradient_is_summed_in_float32_over_many_steps():
    """Equal terms, which a sum in bfloat16 would stop to grow by at 256."""
    layer = LSTM(
        1,
        activation="linear",
        recurrent_activation="linear",
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
        bias_initializer="ones",
        unit_forget_bias=False,
        return_sequences=True,
        dtype="mixed_bfloat16",
    )
    steps = 1024
    x = tf.zeros((1, steps, 1))

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(x), tf.float32))
        return tape.gradient(loss, layer.cell.recurrent_kernel.value)

    layer.build(x.shape)
    layer.cell.bias.assign([1.0, 0.0, 1.0, 1.0])  # forgets all: hidden is 1
    found = np.asarray(gradient())[0]
    # Of take, new and out: hidden before is 1, but for the first step.
    np.testing.assert_allclose(found[[0, 2, 3]], steps - 1, rtol=2**-8)
