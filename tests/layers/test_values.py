"""Right values and dtypes under policies that compute in 16 bits."""

import keras
import numpy as np
import pytest
from layers.cases import arrays
from layers.cases import dtypes
from layers.cases import parameters

import tf_mixprec as mp
from tf_mixprec import layers

# Spacing of numbers at 1.
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
# Their projections are 16-bit products, with a rounding each.
PROJECTING = ("MultiHeadAttention", "GroupedQueryAttention")


def scale_of(array):
    return np.max(np.abs(array))


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("case", parameters())
def test_values_are_those_of_float32_rounded_once(case, dtype):
    reference = case.make(keras.layers)
    layer = case.make(layers, f"mixed_{dtype}", reference.get_weights())
    inputs = case.inputs(2)
    expected = arrays(case.call(reference, inputs))
    outputs = case.call(layer, inputs)
    assert dtypes(outputs) == {dtype}
    for a, b in zip(arrays(outputs), expected, strict=True):
        if case.name in PROJECTING:
            np.testing.assert_allclose(a, b, atol=4 * EPS[dtype] * scale_of(b))
        else:
            exact = arrays(keras.ops.cast(b.astype("float32"), dtype))[0]
            np.testing.assert_array_equal(a, exact)
    for a, b in zip(layer.losses, reference.losses, strict=True):
        assert dtypes(a) == {"float32"}
        np.testing.assert_allclose(*arrays([a, b]), rtol=2 * EPS[dtype])


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("case", parameters())
def test_16_bit_inputs_are_not_computed_with_in_16_bits(case, dtype):
    if case.name in PROJECTING:
        pytest.skip("its projections are")
    reference = case.make(keras.layers)
    layer = case.make(layers, f"mixed_{dtype}", reference.get_weights())
    inputs = [
        keras.ops.cast(np.clip(x, -6e4, 6e4), dtype)
        if x.dtype == "float32"
        else x
        for x in case.inputs(2)
    ]
    wide = [
        keras.ops.cast(x, "float32")
        if keras.backend.is_float_dtype(x.dtype.name)
        else x
        for x in inputs
    ]
    expected = arrays(case.call(reference, wide))
    # `call` itself, as `TimeDistributed` does.
    direct = [inputs] if case.listed else inputs
    for outputs in (
        case.call(layer, inputs),
        layer.call(*direct, **case.call_arguments),
    ):
        assert dtypes(outputs) == {dtype}
        for a, b in zip(arrays(outputs), expected, strict=True):
            exact = arrays(keras.ops.cast(b.astype("float32"), dtype))[0]
            np.testing.assert_array_equal(a, exact)


POLICIES = [
    ("float32", "float32"),
    ("mixed_float16", "float16"),
    ("bfloat16", "bfloat16"),
    (mp.Policy("mixed_bfloat16", output_dtype="float16"), "float16"),
]


@pytest.mark.parametrize("case", parameters())
def test_symbolic_dtypes_and_shapes_are_the_real_ones(case):
    for policy, expected in POLICIES:
        layer = case.make(layers, policy)
        assert layer.dtype_policy == keras.dtype_policies.get(policy)
        outputs = case.call(layer, case.inputs())
        specs = case.call(layer, case.specs())
        assert dtypes(outputs) == dtypes(specs) == {expected}, policy
        if case.call_arguments.get("return_attention_scores"):
            continue  # Keras expects as many keys as queries
        for real, spec in zip(
            keras.tree.flatten(outputs), keras.tree.flatten(specs), strict=True
        ):
            assert tuple(real.shape[1:]) == tuple(spec.shape[1:])


@pytest.mark.parametrize("case", parameters())
def test_float64_stays_float64(case):
    if case.name == "AveragePooling3D":
        pytest.skip("TensorFlow has no kernel for it on CPUs")
    reference, layer = (
        case.make(module, "float64") for module in (keras.layers, layers)
    )
    assert layer.compute_dtype == "float64"
    inputs = [
        x.astype("float64") if x.dtype == "float32" else x
        for x in case.inputs(2)
    ]
    outputs = case.call(layer, inputs)
    assert dtypes(outputs) == {"float64"}
    for a, b in zip(
        arrays(outputs), arrays(case.call(reference, inputs)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_integer_policies_are_left_alone():
    layer = layers.Rescaling(2, dtype="int32")
    assert layer.compute_dtype == "int32"
    outputs = layer(np.array([[1, 2]], "int32"))
    assert dtypes(outputs) == {"int32"}
    np.testing.assert_array_equal(outputs, [[2, 4]])


def test_a_policy_map_is_looked_up_by_path():
    policies = keras.dtype_policies.DTypePolicyMap(
        default_policy="mixed_bfloat16"
    )
    layer = layers.LayerNormalization(dtype=policies)
    assert layer.output_dtype == "bfloat16"
    layer(np.ones((1, 2)))
    policies[layer.path] = keras.DTypePolicy("mixed_float16")
    assert layer.compute_dtype == "float32"
    assert dtypes(layer(np.ones((1, 2)))) == {"float16"}


def test_a_layer_in_a_16_bit_layer_reads_float32_weights():
    class Block(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = layers.RMSNormalization(dtype=kwargs["dtype"])

        def build(self, input_shape):
            self.norm.build(input_shape)

        def call(self, inputs):
            return self.norm(inputs)

    block = Block(dtype="mixed_float16")
    block(np.ones((1, 2)))
    # 1 + 2**-11 is 1 in float16.
    block.set_weights([np.array([2048.5 / 2048, 4.0 + 2.0**-9])])
    outputs = arrays(block(np.array([[2047.0, 2047.0]])))[0]
    np.testing.assert_array_equal(outputs, [[1.0, 4.0]])
    layer = layers.RMSNormalization(
        dtype=mp.Policy("mixed_float16", output_dtype="float32")
    )
    layer(np.ones((1, 2)))
    layer.set_weights(block.get_weights())
    outputs = arrays(layer(np.ones((1, 2))))[0]
    np.testing.assert_allclose(
        outputs, [[1 + 2.0**-12, 4.0 + 2.0**-9]], rtol=1e-6
    )


@pytest.mark.parametrize("mixed", ["mixed_float16", "mixed_bfloat16"])
def test_layers_in_wrappers_that_call_call(mixed):
    keras.config.set_dtype_policy(mixed)
    model = keras.Sequential(
        [
            keras.Input((3, 8)),
            keras.layers.TimeDistributed(layers.LayerNormalization()),
            keras.layers.TimeDistributed(layers.Softmax()),
        ]
    )
    outputs = model(np.ones((2, 3, 8), "float32"))
    assert dtypes(outputs) == dtypes(model.outputs)
    np.testing.assert_array_equal(arrays(outputs)[0], np.full((2, 3, 8), 0.125))
