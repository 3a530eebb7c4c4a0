"""Eager code, graphs and XLA give one result, and train."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fault_cases import MODES
from layers.cases import arrays
from layers.cases import dtypes
from layers.cases import parameters

from tf_mixprec import layers

# The others are slow.
SOME = (
    "BatchNormalization_training",
    "Embedding",
    "UnitNormalization",
)


def gradients_of(case, layer, inputs):
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(case.call(layer, inputs))
        loss = sum(
            tf.reduce_sum(tf.sin(tf.cast(y, "float32"))) for y in outputs
        )
    variables = [v.value for v in layer.trainable_variables]
    gradients = tape.gradient(
        loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return outputs, [tf.convert_to_tensor(g) for g in gradients]


@pytest.mark.parametrize("case", parameters(SOME))
def test_results_and_gradients_do_not_depend_on_the_mode(case):
    results = []
    for call in MODES.values():
        layer = case.make(layers, "mixed_float16")
        inputs = [tf.constant(x) for x in case.inputs(2)]
        keras.utils.set_random_seed(1)
        outputs, gradients = call(
            lambda layer=layer, inputs=inputs: gradients_of(case, layer, inputs)
        )()
        assert dtypes(outputs) == {"float16"}
        if gradients:
            assert dtypes(gradients) == {"float32"}
        results.append(arrays([outputs, gradients]))
    scale = max(np.max(np.abs(x)) for x in results[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            # A few roundings in float16, which XLA may leave out between ops.
            np.testing.assert_allclose(a, b, rtol=4e-3, atol=4e-3 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_network_of_them_trains(dtype, jit_compile):
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(ids)
    x = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = x + layers.Attention(use_scale=True)([x, x])
    x = layers.RMSNormalization()(x)
    x = layers.ActivityRegularization(l2=1e-6)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.BatchNormalization()(keras.layers.Dense(8)(x))
    outputs = layers.Softmax(dtype="float32")(keras.layers.Dense(2)(x))
    model = keras.Model(ids, outputs)
    model.compile(
        keras.optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        jit_compile=jit_compile,
    )
    x = np.random.default_rng(0).integers(0, 20, (64, 6))
    y = (x[:, 0] > 9).astype("int32")
    losses = model.fit(x, y, epochs=8, batch_size=16, verbose=0)
    losses = losses.history["loss"]
    assert losses[-1] < 0.5 * losses[0]
