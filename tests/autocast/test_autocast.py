"""What `mp.autocast` takes, and how what it returns is called."""

import gc
import inspect
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp


def weight(*shape, seed=0):
    random = np.random.default_rng(seed)
    return tf.Variable(random.normal(size=shape).astype("float32") / 4)


X = tf.constant(np.random.default_rng(9).normal(size=(4, 8)), tf.float32)


def is_rounded(value):
    """Whether each number is one of bfloat16."""
    return bool(
        tf.reduce_all(tf.cast(tf.cast(value, "bfloat16"), "float32") == value)
    )


def product(x):
    return tf.matmul(x, x, transpose_b=True)


def in_bfloat16(function):
    return mp.autocast(function, "bfloat16")


# Ways to call


def test_a_decorator_without_arguments():
    @mp.autocast
    def function(x):
        """A product."""
        return product(x)

    assert function.__name__ == "function"
    assert function.__doc__ == "A product."
    expected = mp.recommended_policy().policy.compute_dtype
    assert function.dtype == expected
    assert function(X).dtype == tf.float32


def test_a_decorator_with_arguments():
    @mp.autocast(dtype="bfloat16", lists=mp.op_lists.DEFAULT.full("MatMul"))
    def function(x):
        return product(x)

    np.testing.assert_array_equal(function(X), product(X))


def test_methods_are_bound_to_their_objects():
    class Layer(tf.Module):
        def __init__(self, seed):
            super().__init__()
            self.weight = weight(8, 8, seed=seed)

        @mp.autocast(dtype="bfloat16")
        def __call__(self, x):
            return tf.matmul(x, self.weight)

    first, second = Layer(1), Layer(2)
    for layer in (first, second, first):
        value = layer(X)
        assert is_rounded(value)
        np.testing.assert_allclose(value, tf.matmul(X, layer.weight), atol=0.02)
    assert Layer.__call__.dtype == "bfloat16"


@pytest.mark.parametrize("wrapped", [lambda f: f, tf.function])
def test_a_function_and_a_tf_function(wrapped):
    assert is_rounded(mp.autocast(wrapped(product), "bfloat16")(X))


def test_a_function_that_xla_compiles_stays_so():
    @tf.function(jit_compile=True)
    def function(x):
        return product(x)

    autocast = mp.autocast(function, "bfloat16")
    assert is_rounded(autocast(X))
    library = autocast.get_concrete_function(X).graph.as_graph_def().library
    assert any(f.attr["_XlaMustCompile"].b for f in library.function)


def test_the_signature_of_a_tf_function_is_kept():
    traces = []

    @tf.function(input_signature=[tf.TensorSpec((None, 8), tf.float32)])
    def function(x):
        traces.append(x.shape)
        return product(x)

    autocast = mp.autocast(function, "bfloat16")
    assert autocast(X).shape == (4, 4)
    assert autocast(X[:2]).shape == (2, 2)
    assert [each[0] for each in traces] == [None]


def test_an_input_signature_of_its_own():
    spec = tf.TensorSpec((None, 8), tf.float32)
    function = mp.autocast(product, "bfloat16", input_signature=[spec])
    assert function.get_concrete_function().structured_outputs.shape == (
        None,
        None,
    )
    assert function(X).shape == (4, 4)


def test_arguments_by_name_and_by_default():
    def function(x, *, scale=2.0, add: bool = False):
        return tf.matmul(x, x, transpose_b=True) * scale + (1.0 if add else 0)

    autocast = mp.autocast(function, "bfloat16")
    assert inspect.signature(autocast) == inspect.signature(function)
    for options in ({}, {"scale": 3.0}, {"add": True, "scale": 0.5}):
        np.testing.assert_allclose(
            autocast(X, **options), function(X, **options), rtol=0.02, atol=0.1
        )
    np.testing.assert_array_equal(autocast(x=X), autocast(X))


def test_a_keras_model():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    function = mp.autocast(model, "bfloat16")
    value = function(X, training=True)
    assert is_rounded(value)
    np.testing.assert_allclose(value, model(X), atol=0.05)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(X))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert [g.dtype for g in gradients] == [tf.float32] * 2


def test_it_is_traced_once_for_a_kind_of_input():
    traces = []

    def function(x):
        traces.append(0)
        return product(x)

    autocast = mp.autocast(function, "bfloat16")
    for _ in range(3):
        autocast(X)
    assert len(traces) == 1
    autocast(X[:2])
    assert len(traces) == 2


def test_variables_made_in_the_first_call():
    made = []

    @mp.autocast(dtype="bfloat16")
    def function(x):
        if not made:
            made.append(tf.Variable(tf.ones((8, 2))))
        return tf.matmul(x, made[0])

    value = function(X)
    assert is_rounded(value)
    made[0].assign(tf.zeros((8, 2)))
    np.testing.assert_array_equal(function(X), np.zeros((4, 2)))


def test_it_is_saved_within_a_tf_function(tmp_path):
    module = tf.Module()
    module.weight = weight(8, 3)
    function = mp.autocast(lambda x: tf.matmul(x, module.weight), "bfloat16")
    module.call = tf.function(
        function, input_signature=[tf.TensorSpec((None, 8), tf.float32)]
    )
    expected = module.call(X)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.call(X), expected)


def test_objects_with_methods_under_autocast_are_let_go():
    class Layer(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight(8, 8)

        @mp.autocast(dtype="bfloat16")
        def call(self, x):
            return tf.matmul(x, self.weight)

    layers = [Layer() for _ in range(3)]
    references = [weakref.ref(layer) for layer in layers]
    for layer in layers:
        layer.call(X)
    method = layers[0].call  # keeps its object
    del layers, layer
    gc.collect()
    assert [r() is not None for r in references] == [True, False, False]
    assert method(X).shape == (4, 8)


def test_what_is_traced_is_let_go():
    def graph_of(wrap):
        function = wrap(lambda x: tf.matmul(x, x, transpose_b=True))
        function(X)
        return weakref.ref(function.get_concrete_function(X).graph)

    graph = graph_of(in_bfloat16)
    plain = graph_of(tf.function)
    gc.collect()
    assert plain() is None
    assert graph() is None


def test_a_method_of_an_object_that_has_no_hash():
    class Pair(tf.experimental.ExtensionType):
        first: tf.Tensor

        @mp.autocast(dtype="bfloat16")
        def product(self, x):
            return tf.matmul(x, self.first)

    assert is_rounded(Pair(weight(8, 8)).product(X))


def test_functions_that_run_eagerly_to_be_debugged():
    function = mp.autocast(product, "bfloat16")
    function(X)
    tf.config.run_functions_eagerly(True)
    try:
        np.testing.assert_array_equal(function(X), product(X))
        np.testing.assert_array_equal(tf.function(function)(X), product(X))
    finally:
        tf.config.run_functions_eagerly(False)
    assert is_rounded(function(X))


# Off, nested, and parts in full precision


def test_float32_is_the_function_itself():
    calls = []

    def function(x):
        calls.append(tf.executing_eagerly())
        return product(x)

    off = mp.autocast(function, "float32")
    assert off.__wrapped__ is function
    np.testing.assert_array_equal(off(X), product(X))
    off(X)
    assert calls == [True, True]  # not traced


def test_off_within_autocast():
    off = mp.autocast(product, "float32")
    auto = mp.autocast(lambda x: (product(x), off(x)), "bfloat16")
    low, full = auto(X)
    assert is_rounded(low)
    np.testing.assert_array_equal(full, product(X))


def test_another_dtype_within_autocast():
    w = weight(8, 8)
    inner = mp.autocast(lambda x: tf.matmul(x, w), "float16")
    outer = mp.autocast(
        lambda x: (tf.matmul(x, w), inner(x), tf.matmul(inner(x), w)),
        "bfloat16",
    )
    low, other, after = outer(X)
    assert is_rounded(low)
    assert not is_rounded(other)
    np.testing.assert_array_equal(
        other, tf.cast(tf.cast(other, "float16"), "float32")
    )
    np.testing.assert_array_equal(other, inner(X))
    assert is_rounded(after)


@pytest.mark.parametrize("wrapped", [lambda f: f, tf.function])
def test_full_precision_in_a_part(wrapped):
    w = weight(8, 8)

    @mp.full_precision
    @wrapped
    def exact(x):
        if tf.reduce_sum(x) > -1e9:  # by AutoGraph
            x = tf.matmul(x, w)
        return tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x)
        )[1]

    function = mp.autocast(lambda x: exact(tf.matmul(x, w)), "bfloat16")
    rounded = mp.autocast(lambda x: tf.matmul(x, w), "bfloat16")(X)
    np.testing.assert_allclose(function(X), tf.function(exact)(rounded), 1e-6)
    assert exact(X).dtype == tf.float32


def test_gradients_of_ones_own_in_a_part_of_full_precision():
    w = weight(8, 8)

    @mp.full_precision
    @tf.custom_gradient
    def exact(x):
        return x * 1.0, lambda dy: tf.matmul(dy, tf.convert_to_tensor(w))

    gradients = []
    for function in (tf.function(exact), mp.autocast(exact, "bfloat16")):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = function(X)
        gradients.append(tape.gradient(y, X, X))
    np.testing.assert_array_equal(gradients[1], gradients[0])


def test_full_precision_of_a_method():
    class Layer:
        @mp.full_precision
        def call(self, x):
            return product(x)

    function = mp.autocast(Layer().call, "bfloat16")
    np.testing.assert_array_equal(function(X), product(X))


# What is seldom said and often meant


def test_a_mask_of_minus_infinity_stays_finite_in_float16():
    w = weight(8, 4)

    def scores(x):
        return tf.nn.softmax(tf.matmul(x, w) + tf.constant(-1e9))

    np.testing.assert_allclose(
        mp.autocast(scores, "float16")(X), np.full((4, 4), 0.25), 1e-6
    )


def test_a_large_constant_in_a_function_that_is_called():
    w = weight(8, 4)
    masked = tf.function(lambda y, mask: y + tf.reshape(mask, (1, 1)))
    function = mp.autocast(
        lambda x: tf.nn.softmax(masked(tf.matmul(x, w), tf.constant(-1e9))),
        "float16",
    )
    np.testing.assert_allclose(function(X), np.full((4, 4), 0.25), 1e-6)


def test_an_array_of_constants_is_not_rounded():
    positions = tf.constant([1000.0, 1001.0, 1002.0, 1003.0])
    w = weight(8, 4)
    function = mp.autocast(
        lambda x: tf.matmul(x, w) * 0 + positions, "bfloat16"
    )
    np.testing.assert_array_equal(function(X)[0], positions)
    halves = tf.constant([0.5, 1.0, -2.0, 0.0])  # these are of 16 bits
    function = mp.autocast(lambda x: tf.matmul(x, w) + halves, "bfloat16")
    assert is_rounded(function(X))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_what_is_repeated_over_many_rows(dtype):
    """Sums of 5,000 equal terms, which float16 kernels stop at 2048."""
    rows, w = 5000, tf.Variable(tf.ones((4, 2)))
    bias, gain, row = (
        tf.Variable(v) for v in (tf.zeros(2), tf.ones(2), tf.ones((1, 2)))
    )

    def function(x):
        y = tf.matmul(x, w) / 4
        z = tf.tile(tf.matmul(tf.matmul(row, tf.eye(2)), tf.eye(2)), [rows, 1])
        return (
            tf.reduce_sum(y + bias),
            tf.reduce_sum(y * gain),
            tf.reduce_sum(z),
        )

    with tf.GradientTape() as tape:
        losses = mp.autocast(function, dtype)(tf.ones((rows, 4)))
        loss = tf.add_n(losses)
    for gradient in tape.gradient(loss, [bias, gain, row]):
        np.testing.assert_allclose(
            gradient, tf.fill(gradient.shape, 5e3), 2**-8
        )


def test_a_large_constant_is_no_infinity():
    function = mp.autocast(
        lambda x: tf.where(x > 0, product(x[:, :4]), tf.float32.min),
        "bfloat16",
    )
    assert np.isfinite(function(tf.ones((4, 4)))).all()


def test_a_residual_stays_float32():
    w = weight(8, 8)
    function = mp.autocast(lambda x: x + tf.matmul(x, w), "bfloat16")
    difference = function(X) - X
    assert not is_rounded(function(X))
    np.testing.assert_allclose(difference, tf.matmul(X, w), atol=0.02)


def test_16_bit_tensors_of_the_user_stay():
    function = mp.autocast(
        lambda x: tf.matmul(
            tf.cast(x, tf.float16), tf.ones((8, 2), tf.float16)
        ),
        "bfloat16",
    )
    assert function(X).dtype == tf.float16


def test_lists_of_ones_own():
    function = mp.autocast(
        lambda x: tf.nn.softmax(product(x)),
        "bfloat16",
        lists=mp.op_lists.DEFAULT.low("Softmax"),
    )
    assert is_rounded(function(X))


# Wrong use


def test_what_cannot_be_called():
    with pytest.raises(
        TypeError, match="must be callable.*Received: function=3"
    ):
        mp.autocast(3)
    with pytest.raises(TypeError, match="must be callable"):
        mp.full_precision("f")


@pytest.mark.parametrize("dtype", ["int8", "float64", "half", "mixed_bfloat16"])
def test_a_dtype_that_is_no_16_bit_float(dtype):
    with pytest.raises(
        ValueError, match=f"16-bit float.*Received: dtype='{dtype}'"
    ):
        mp.autocast(product, dtype)


def test_a_with_statement():
    with (
        pytest.raises(TypeError, match="make a function of the block"),
        mp.autocast(dtype="bfloat16"),
    ):
        pass
    with pytest.raises(TypeError, match="a dtype goes into `dtype=`"):
        mp.autocast("bfloat16")


def test_what_is_no_function():
    class Layer:
        pass

    async def function(x):
        return x

    for wrong in (Layer, function):
        with pytest.raises(TypeError, match="must be a function that"):
            mp.autocast(wrong)


def test_what_is_printed():
    assert repr(mp.autocast(product, "bfloat16")) == (
        "<AutocastFunction product in bfloat16>"
    )
    assert re.fullmatch(
        r"OpLists\(\d+ low, \d+ full, \d+ widest, \d+ neutral\)",
        repr(mp.op_lists.DEFAULT),
    )


def test_a_dtype_that_is_no_string():
    with pytest.raises(TypeError, match='string such as "bfloat16"'):
        mp.autocast(product, tf.bfloat16)


def test_lists_that_are_none():
    with pytest.raises(TypeError, match="must be an `OpLists`"):
        mp.autocast(product, "bfloat16", lists=["MatMul"])


def test_an_unknown_op():
    with pytest.raises(ValueError, match="Near it: MatMul.*Received: 'Matmul'"):
        mp.op_lists.DEFAULT.low("Matmul")
    with pytest.raises(TypeError, match="by its name"):
        mp.op_lists.DEFAULT.full(tf.matmul)
    with pytest.raises(ValueError, match="category must be one of"):
        mp.op_lists.OpLists({"MatMul": "lower"})
    with pytest.raises(ValueError, match="Received: 'Nope'"):
        mp.autocast(product, lists=mp.op_lists.OpLists({"Nope": "low"}))
    with pytest.raises(ValueError, match="the lists that there are"):
        mp.op_lists.DEFAULT.names("lower")


@pytest.mark.parametrize(
    "function",
    [lambda x: x.numpy(), lambda x: np.exp(x), lambda x: float(x[0, 0])],
    ids=["numpy", "ufunc", "float"],
)
def test_a_function_that_cannot_be_traced(function):
    with pytest.raises(
        TypeError, match="must be one that TensorFlow can trace"
    ):
        mp.autocast(function, "bfloat16")(X)


def test_an_error_of_the_function_is_its_own():
    def function(x):
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        mp.autocast(function, "bfloat16")(X)


def test_nothing_is_traced_where_it_is_off():
    auto = mp.autocast(product, "bfloat16")
    auto.__dict__["dtype"] = "float32"  # as "auto" finds on some devices
    with pytest.raises(ValueError, match="Autocast must be on"):
        auto.get_concrete_function(X)
    np.testing.assert_array_equal(auto(X), product(X))


def test_lists_are_data():
    lists = mp.op_lists.DEFAULT
    assert lists.category("MatMul") == "low"
    assert lists.category("NoSuchOp") is None
    assert "Softmax" in lists.names("full")
    assert lists.without("MatMul").category("MatMul") is None
    assert lists.widest("MatMul").category("MatMul") == "widest"
    assert lists.neutral("MatMul").category("MatMul") == "neutral"
    assert hash(lists.low("MatMul")) == hash(lists)
    assert lists.low("MatMul") == lists
