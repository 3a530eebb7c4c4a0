"""Every layer of Keras, converted: finite and near float32 at each scale.

The layer is inside of a model, and what it returns is compared with what the
float32 model returns for the same inputs, weights and random states.
"""

import dataclasses
import functools
import importlib.util
import pathlib

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from conversion import layer_cases
from conversion.layer_cases import CASES
from conversion.layer_cases import NO_CASE
from conversion.layer_cases import SCALES

import tf_mixprec as mp
from tf_mixprec.conversion import convert
from tf_mixprec.conversion.plan import decisions

DTYPES = ("float16", "bfloat16")

# By how many ulps of its dtype a result may be off. Where the inside is
# float32, only the result is rounded. In 16 bits, inputs and weights are too,
# twice before an attention layer has its logits, at each step in recurrent
# layers; twice what was measured, since processors add in different orders.
ROUNDED_RESULT = 0.51
ROUNDED_TERMS = {
    "attention": 10.0,
    "convolution": 3.0,
    "matmul": 3.0,
    "other": 5.0,
    "recurrent": 10.0,
}
HAS_16_BIT_PROJECTIONS = ("GroupQueryAttention", "MultiHeadAttention")


@dataclasses.dataclass(frozen=True)
class Limit:
    """Where the error may be larger, and why.

    Args:
        reason: Why.
        names: Names of cases, in one string.
        scales: At which scales.
        dtypes: In which dtypes.
        is_finite: Whether what float32 and the dtype can hold stays finite.
    """

    reason: str
    names: str
    scales: tuple[float, ...] = SCALES
    dtypes: tuple[str, ...] = DTYPES
    is_finite: bool = True

    def covers(self, name, dtype, scale):
        return (
            name in self.names.split()
            and dtype in self.dtypes
            and scale in self.scales
        )


# The first that covers a case counts.
LIMITS = [
    Limit(
        # 16 bits by design: as float32, these would be as slow as float32.
        "float16 inputs above 65504",
        "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose "
        "Dense DepthwiseConv1D DepthwiseConv2D EinsumDense "
        "GroupQueryAttention GroupQueryAttention_masked MultiHeadAttention "
        "MultiHeadAttention_masked SeparableConv1D SeparableConv2D "
        "TimeDistributed "
        "Bidirectional ConvLSTM1D ConvLSTM2D ConvLSTM3D GRU GRUCell LSTM "
        "LSTMCell RNN SimpleRNN SimpleRNNCell StackedRNNCells "
        "Activation_gelu Activation_glu Activation_hard_silu "
        "Activation_leaky_relu Activation_mish Activation_silu "
        "Activation_softsign LeakyReLU PReLU "
        "Add AlphaDropout Dropout GaussianDropout Lambda SpatialDropout1D "
        "SpatialDropout2D Subtract",
        scales=(7e4,),
        dtypes=("float16",),
        is_finite=False,
    ),
    Limit(
        "drops other elements, since random numbers have the compute dtype",
        "Dropout SpatialDropout1D SpatialDropout2D",
    ),
    Limit(
        "off by up to an ulp of 1 for small negative numbers: exp(x) - 1",
        "Activation_elu Activation_selu ELU",
        scales=(1e-4,),
    ),
    Limit(
        "rounding moves gates that are neither open nor shut",
        "Bidirectional",
        scales=(300.0,),
    ),
    Limit(
        "rounding moves gates that are neither open nor shut",
        "ConvLSTM1D",
        scales=(300.0,),
        dtypes=("bfloat16",),
    ),
]


class Tail(keras.layers.Layer):
    """Ends a model, and returns what it is given, in its dtype."""

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return inputs

    def compute_output_spec(self, inputs):
        return keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype, sparse=x.sparse),
            inputs,
        )


@functools.cache
def decided(name):
    """Returns what SAFE decides on the layer of a case: kind, and what to do.

    One of "16 bits", "float32 inside", "float32" and "untouched".
    """
    layer = CASES[name].make()
    model = keras.Sequential([layer, Tail()])
    target = mp.Policy("mixed_float16")
    decision = decisions(model, mp.rules.SAFE, target, None)[id(layer)]
    return decision.kind, _words(decision)


def _words(decision):
    if decision.policy is None:
        return "untouched"
    if decision.layer_class in mp.layers.TWINS.values():
        return "float32 inside"
    if decision.policy.compute_dtype == "float16":
        return "16 bits"
    output = getattr(decision.policy, "output_dtype", "float32")
    return "float32 inside" if output == "float16" else "float32"


def symbolic(structure, leaves):
    """Replaces `Values` with inputs, which are added to a list."""

    def replaced(value):
        if not isinstance(value, layer_cases.Values):
            return value
        leaves.append(keras.Input(batch_shape=value.shape, dtype=value.dtype))
        return leaves[-1]

    return keras.tree.map_structure(replaced, structure)


@functools.lru_cache(2)
def model_of(name):
    """Returns the float32 model of a case, and its state."""
    case = CASES[name]
    keras.utils.set_random_seed(0)
    leaves = []
    inputs, call = symbolic((case.inputs, case.call), leaves)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    layer = case.make()
    model = keras.Model(leaves, Tail()(layer(*inputs, **call)))
    assert layer in model.layers
    return model, state_of(model)


@functools.lru_cache(len(SCALES))
def expected(name, scale):
    """Returns what the float32 model returns."""
    return outputs(*model_of(name), CASES[name].arrays(scale))


@functools.lru_cache(len(SCALES))
def sums_of_products(name, scale):
    """Returns the outputs with all inputs and weights made positive."""
    model, state = model_of(name)
    state = [np.abs(v) for v in state]
    arrays = [np.abs(x) for x in CASES[name].arrays(scale)]
    (sums,) = outputs(model, state, arrays)
    return wide(sums)


@functools.lru_cache(2)
def converted(name, dtype):
    """Returns the converted model of a case, and its state."""
    model, state = model_of(name)
    set_state(model, state)
    new = convert(model, f"mixed_{dtype}")
    return new, state_of(new)


def state_of(model):
    return [np.array(v) for v in model.variables]


def set_state(model, state):
    for variable, value in zip(model.variables, state, strict=True):
        variable.assign(value)


def outputs(model, state, arrays):
    """Returns the outputs of a model in a state, flat."""
    set_state(model, state)
    # AugMix draws with Python's generator.
    keras.utils.set_random_seed(0)
    tensors = [keras.ops.convert_to_tensor(x) for x in arrays]
    return keras.tree.flatten(model(tensors))


def is_float(tensor):
    return keras.backend.is_float_dtype(dtype_of(tensor))


def dtype_of(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def wide(tensor):
    return np.asarray(tensor).astype("float64")


def ulp(magnitude, dtype):
    """Returns the distance between numbers of a dtype around a magnitude."""
    info = ml_dtypes.finfo(dtype)
    smallest = float(info.smallest_normal)
    _, exponent = np.frexp(np.maximum(magnitude, smallest))
    return np.ldexp(float(info.eps), exponent - 1)


def magnitudes(name, scale, result):
    """Returns what errors are measured by: sums of |x||w| for products.

    Elsewhere results, or their mean where that is larger.
    """
    if decided(name) in (("convolution", "16 bits"), ("matmul", "16 bits")):
        return sums_of_products(name, scale)
    size = np.abs(np.where(np.isfinite(result), result, 0.0))
    return np.maximum(size, size.mean())


def bound_of(name):
    """Returns what the error of a case may be."""
    kind, done = decided(name)
    if done in ("float32", "untouched"):
        return 0.0
    if done == "16 bits" or CASES[name].name in HAS_16_BIT_PROJECTIONS:
        return ROUNDED_TERMS[kind]
    return ROUNDED_RESULT


@dataclasses.dataclass
class Comparison:
    """A converted layer and the float32 one, at one scale.

    Args:
        bound: What the error may be.
        ulps: The largest error.
        is_finite: Whether what float32 and the dtype can hold is finite.
        is_exact: Whether dtypes, and numbers that are no floats, are right.
    """

    bound: float
    ulps: float = 0.0
    is_finite: bool = True
    is_exact: bool = True

    @property
    def is_near(self):
        return self.is_finite and self.ulps <= self.bound


def compared(name, dtype, scale):
    """Returns the comparison of a case."""
    actual = outputs(*converted(name, dtype), CASES[name].arrays(scale))
    result = Comparison(bound_of(name))
    keeps_dtype = decided(name)[1] in ("float32", "untouched")
    for a, b in zip(expected(name, scale), actual, strict=True):
        if not is_float(a):
            same = dtype_of(a) == dtype_of(b) and np.array_equal(a, b)
            result.is_exact &= same
            continue
        result.is_exact &= dtype_of(b) == (
            dtype_of(a) if keeps_dtype else dtype
        )
        by = magnitudes(name, scale, wide(a))
        add_errors(result, a, b, by)
    return result


def add_errors(result, wanted, actual, magnitude):
    """Adds what differs between two tensors to a comparison."""
    dtype = dtype_of(actual)
    rounded = wide(keras.ops.cast(wanted, dtype))
    a, b = wide(wanted), wide(actual)
    finite = np.isfinite(rounded)
    infinite = np.isinf(rounded)
    result.is_finite &= bool(
        np.isfinite(b[finite]).all()
        and (b[infinite] == rounded[infinite]).all()
    )
    finite &= np.isfinite(b)
    error = np.abs(a[finite] - b[finite]) / ulp(magnitude[finite], dtype)
    result.ulps = max(result.ulps, float(error.max(initial=0.0)))


def limit_of(name, dtype, scale):
    """Returns the limit that covers a comparison, or `None`."""
    covering = (limit for limit in LIMITS if limit.covers(name, dtype, scale))
    return next(covering, None)


def combinations():
    """Returns arguments of `compared`, those of one model in a row."""
    return [
        pytest.param(
            name, dtype, scale, marks=[pytest.mark.slow] * is_slow(case)
        )
        for name, case in CASES.items()
        for dtype in DTYPES
        for scale in case.scales
    ]


def is_slow(case):
    """Returns whether other cases show the same."""
    if case.name in ("MaxPooling3D", "MixUp", "Resizing", "UpSampling2D"):
        return False
    if case.name == "Activation":
        return decided(str(case))[1] == "16 bits"
    rest = [*layer_cases.AUGMENTATION, *layer_cases.RESHAPING]
    return case in rest or case.name.startswith(SLOW)


# Cells and wrapped cells, thin layers around a few operations, and spectra.
SLOW = (
    "Adaptive",
    "ConvLSTM",
    "Global",
    "GRUCell",
    "LSTMCell",
    "Max",
    "Mel",
    "Min",
    "RNN",
    "Simple",
    "Spatial",
    "Stacked",
    "STFT",
)


@pytest.mark.parametrize(("name", "dtype", "scale"), combinations())
def test_a_converted_layer_is_finite_and_near_float32(name, dtype, scale):
    result = compared(name, dtype, scale)
    limit = limit_of(name, dtype, scale)
    assert result.is_exact
    if limit is None:
        assert result.is_near, result
        return
    assert not result.is_near, f"no longer needed: {limit.reason}"
    assert result.is_finite or not limit.is_finite


def exported():
    """Returns the classes of layers in `keras.layers`, by their first name."""
    values = ((n, getattr(keras.layers, n)) for n in dir(keras.layers))
    return {
        value: name
        for name, value in reversed(list(values))
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }


def test_each_layer_of_keras_has_a_case_or_a_reason():
    classes = {getattr(keras.layers, case.name) for case in CASES.values()}
    names = {name for c, name in exported().items() if c not in classes}
    assert names == set(NO_CASE)


def test_each_limit_covers_a_case():
    for limit in LIMITS:
        assert set(limit.names.split()) <= set(CASES), limit


def gradients(model, state, arrays):
    """Returns the gradients with respect to inputs and weights."""
    set_state(model, state)
    keras.utils.set_random_seed(0)
    tensors = [tf.convert_to_tensor(x) for x in arrays]
    sources = [x for x in tensors if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        results = [x for x in keras.tree.flatten(model(tensors)) if is_float(x)]
        squares = [tf.reduce_sum(tf.cast(x, "float32") ** 2) for x in results]
    return tape.gradient(squares, sources + model.trainable_variables)


HAVE_GRADIENTS = [
    name
    for name, case in CASES.items()
    if case not in [*layer_cases.AUGMENTATION, *layer_cases.PREPROCESSING]
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HAVE_GRADIENTS)
def test_gradients_are_finite_where_those_of_float32_are(name, dtype):
    """And a processor has all the kernels."""
    arrays = CASES[name].arrays(1.0)
    wanted = gradients(*model_of(name), arrays)
    actual = gradients(*converted(name, dtype), arrays)
    for a, b in zip(wanted, actual, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = wide(tf.convert_to_tensor(a)), wide(tf.convert_to_tensor(b))
            assert np.isfinite(b[np.isfinite(a)]).all()


def made_table():
    """Returns the module that makes the table of layers."""
    path = pathlib.Path(__file__).parents[2] / "docs" / "make_layers.py"
    spec = importlib.util.spec_from_file_location("make_layers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_layers_is_up_to_date():
    """The layers and what becomes of them; figures are those of one machine."""
    table = made_table()
    if table.is_of_newer_keras():
        pytest.skip("the table is of a newer Keras")
    assert table.written_rows() == table.rows()
