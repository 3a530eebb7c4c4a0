"""`mp.autocast` of many functions: near float32, and 16-bit where it says."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from autocast.functions import CASES

import tf_mixprec as mp

GRAPH, EAGER, XLA = "graph", "eager", "xla"
TYPES = ("T", "dtype", "element_dtype", "Tparams", "Treal")
FLOATS = ("bfloat16", "float16", "float32")

# Cases that take long to trace and have near relatives among the others.
LONG = [
    "custom_gradient_in_a_branch",
    "growing_tensor_array",
    "image_resizing",
    "keras_attention",
    "linear_algebra",
    "loop_in_loop",
    "partial_function",
    "recompute_grad",
    "scan",
    "unknown_batch",
    "vectorized_map",
]
in_corpus = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
        for name in CASES
    ],
)


# What the tests do with a case


@dataclasses.dataclass
class Ran:
    """What became of a case.

    Args:
        outputs: What the function returned.
        sources: What the gradients are of.
        gradients: The gradients.
        states: The values of the variables afterwards.
        function: The `tf.function`, or `AutocastFunction`.
        built: The `Built`.
    """

    outputs: Any
    sources: list
    gradients: list
    states: list
    function: Any
    built: Any

    def concrete(self):
        return self.function.get_concrete_function(
            *self.built.args, **self.built.kwargs
        )


def plain(case, function):
    return tf.function(function, input_signature=case.signature)


def autocast(dtype, case, function):
    return mp.autocast(function, dtype, input_signature=case.signature)


def floats(structure):
    """Returns the tensors of floats in a structure."""
    return [
        each
        for each in tf.nest.flatten(structure, expand_composites=True)
        if tf.is_tensor(each) and each.dtype.is_floating
    ]


def cotangent(index, tensor):
    """Returns the gradient that comes into a result, fixed, of order 1."""
    value = tf.random.stateless_normal(tf.shape(tensor), (17, index))
    return tf.cast(value, tensor.dtype)


def run(case, wrap, mode):
    """Calls the function of a case, and differentiates it."""
    keras.utils.set_random_seed(0)
    built = case.build()
    function = wrap(case, built.function)
    seen = []

    def step(*args, **kwargs):
        inputs = floats((args, kwargs))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*args, **kwargs)
        targets = floats(outputs)
        sources = inputs + [v for v in built.variables if v.dtype.is_floating]
        gradients = tape.gradient(
            targets,
            sources,
            [cotangent(i, each) for i, each in enumerate(targets)],
        )
        seen[:] = sources
        return outputs, gradients

    if mode != EAGER:
        step = tf.function(
            step, jit_compile=mode == XLA or None, autograph=False
        )
    outputs, gradients = step(*built.args, **built.kwargs)
    states = [each.numpy() for each in built.variables]
    return Ran(outputs, seen, gradients, states, function, built)


@functools.cache
def ran(name, dtype, mode):
    """Returns a `Ran`, the same one to all tests of a process."""
    wrap = plain if dtype is None else functools.partial(autocast, dtype)
    return run(CASES[name], wrap, mode)


def distance(found, wanted):
    """Returns by how much of its norm something is off."""
    found, wanted = (
        np.asarray(each, "complex128" if each.dtype.is_complex else "float64")
        if tf.is_tensor(each)
        else np.asarray(each, "float64")
        for each in (found, wanted)
    )
    if np.array_equal(found, wanted, equal_nan=True):
        return 0.0
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def check_outputs(case, dtype, found, wanted):
    tf.nest.assert_same_structure(found, wanted, expand_composites=True)
    bound = case.bound(dtype)
    for one, other in zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(wanted, expand_composites=True),
        strict=True,
    ):
        assert type(one) is type(other)
        if not tf.is_tensor(one):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.is_floating or one.dtype.is_complex:
            assert distance(one, other) <= bound
        else:
            np.testing.assert_array_equal(one, other)


def check_gradients(case, dtype, found, wanted):
    bound = case.bound(dtype)
    assert len(found.gradients) == len(wanted.gradients)
    for source, one, other in zip(
        found.sources, found.gradients, wanted.gradients, strict=True
    ):
        assert type(one) is type(other)
        if other is None:
            continue
        assert one.dtype == source.dtype
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        assert one.shape == other.shape
        assert distance(one, other) <= bound, source


def check(name, dtype, mode):
    """Compares outputs, gradients and variables with those of float32."""
    case = CASES[name]
    found, wanted = ran(name, dtype, mode), ran(name, None, GRAPH)
    if mode != GRAPH:
        wanted = ran(name, None, mode)
    check_outputs(case, dtype, found.outputs, wanted.outputs)
    check_gradients(case, dtype, found, wanted)
    for one, other in zip(found.states, wanted.states, strict=True):
        assert one.dtype == other.dtype
        assert distance(one, other) <= case.bound(dtype)


def nodes(concrete):
    """Yields all nodes of a function and of those that it calls."""
    definition = concrete.graph.as_graph_def()
    library = {
        each.signature.name: each for each in definition.library.function
    }
    waiting, done = list(definition.node), set()
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.attr.values():
            for each in (value.func, *value.list.func):
                if each.name and each.name not in done:
                    done.add(each.name)
                    waiting += library[each.name].node_def


def float_types(node):
    """Returns the names of the floating dtypes of a node."""
    found = set()
    for name in TYPES:
        value = node.attr[name]
        numbers = [*value.list.type] or [value.type] if value.type else []
        found |= {tf.as_dtype(number).name for number in numbers}
    return found.intersection((*FLOATS, "float64"))


def census(concrete):
    """Returns a dict from types of ops to the sets of dtypes they run in."""
    found = {}
    for node in nodes(concrete):
        types = float_types(node)
        if types:
            found.setdefault(node.op, set()).update(types)
    return found


# The corpus


@in_corpus
def test_is_near_float32(name):
    check(name, "bfloat16", GRAPH)


@in_corpus
def test_runs_the_right_ops_in_16_bits(name):
    case = CASES[name]
    found = census(ran(name, "bfloat16", GRAPH).concrete())
    assert {each: found.get(each) for each in case.low.split()} == {
        each: {"bfloat16"} for each in case.low.split()
    }
    assert {each: found.get(each) for each in case.full.split()} == {
        each: {"float32"} for each in case.full.split()
    }


@in_corpus
def test_keeps_static_shapes(name):
    found, wanted = (
        ran(name, dtype, GRAPH).concrete().structured_outputs
        for dtype in ("bfloat16", None)
    )
    tf.nest.assert_same_structure(found, wanted, expand_composites=True)
    for one, other in zip(
        tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True
    ):
        if other is not None:
            one, other = map(tf.type_spec_from_value, (one, other))
            assert one == other


@pytest.mark.slow
@in_corpus
def test_is_near_float32_when_called_eagerly(name):
    check(name, "bfloat16", EAGER)


@pytest.mark.slow
@in_corpus
def test_is_near_float32_compiled_by_xla(name):
    case = CASES[name]
    if case.xla_skipped:
        pytest.skip(case.xla_skipped)
    if not case.xla:
        check(name, "bfloat16", XLA)
        return
    with pytest.raises((tf.errors.OpError, ValueError, NotImplementedError)):
        ran(name, None, XLA)


@pytest.mark.slow
@in_corpus
def test_is_near_float32_in_float16(name):
    check(name, "float16", GRAPH)


def test_keeps_the_kinds_of_gradients():
    for name in ("gather_of_a_variable", "embedding_lookup"):
        slices, dense = ran(name, "bfloat16", GRAPH).gradients
        assert isinstance(slices, tf.IndexedSlices)
        assert slices.dtype == tf.float32
        assert isinstance(dense, tf.Tensor)
    assert ran("structures", "bfloat16", GRAPH).gradients[-1] is None


TWICE = [
    "mlp",
    "attention_with_where",
    "while_loop",
    "convolutions_and_pools",
    "layer_norm",
    "map_fn",
    "custom_gradient",
    "gather_of_a_variable",
    "branch_in_loop",
    "nested_functions",
]


@pytest.mark.parametrize(
    "name",
    [
        n if n in TWICE[:2] else pytest.param(n, marks=pytest.mark.slow)
        for n in TWICE
    ],
)
def test_gradients_of_gradients_are_near_float32(name):
    case = CASES[name]

    def second(wrap):
        built = case.build()
        function = wrap(case, built.function)

        @tf.function(autograph=False)
        def step(*args):
            sources = [*floats(args), *built.variables]
            with tf.GradientTape() as outer:
                outer.watch(floats(args))
                with tf.GradientTape() as inner:
                    inner.watch(floats(args))
                    loss = sum(
                        tf.reduce_sum(cotangent(0, each) * each * each)
                        for each in floats(function(*args))
                    )
                first = inner.gradient(loss, sources)
                first = [tf.convert_to_tensor(each) for each in first]
            return outer.gradient(
                first, sources, [cotangent(1, each) for each in first]
            )

        return step(*built.args)

    # A second gradient holds more products, each of them rounded.
    bound = 2 * case.bound("bfloat16")
    for one, other in zip(
        second(functools.partial(autocast, "bfloat16")),
        second(plain),
        strict=True,
    ):
        assert type(one) is type(other)
        if other is not None:
            one, other = map(tf.convert_to_tensor, (one, other))
            assert one.dtype == other.dtype
            assert distance(one, other) <= bound


# Beside the corpus


def test_a_loop_under_two_tapes_makes_all_its_turns():
    w = tf.Variable(1.0)

    def function(x):
        for _ in tf.range(4):
            x = x + w
        return x

    x = tf.zeros(3)
    with tf.GradientTape() as outer, tf.GradientTape() as inner:
        outer.watch(x)
        inner.watch(x)
        y = mp.autocast(function, "bfloat16")(x)
    np.testing.assert_array_equal(y, [4.0] * 3)


SIZE = 16


def normal(*shape, scale=1.0, seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape) * scale
    return tf.constant(values, tf.float32)


def weight(seed=1):
    return tf.Variable(normal(SIZE, SIZE, scale=0.25, seed=seed))


def lowering_casts(graph_nodes):
    """Returns how many casts from float32 to bfloat16 there are."""
    dtypes = tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum
    return sum(
        node.op == "Cast"
        and (node.attr["SrcT"].type, node.attr["DstT"].type) == dtypes
        for node in graph_nodes
    )


def in_loops(concrete):
    """Returns the nodes of the functions that a function calls."""
    library = concrete.graph.as_graph_def().library.function
    return [node for each in library for node in each.node_def]


def test_op_seeds_give_the_same_numbers_call_after_call():
    def function(x):
        return (
            tf.nn.dropout(x, 0.5, seed=3),
            tf.random.normal((4,), seed=4),
            tf.random.shuffle(tf.range(9), seed=5),
            tf.random.stateless_uniform((4,), (6, 7)),
        )

    def three_calls(function):
        tf.random.set_seed(8)
        return [function(tf.ones((8, 8))) for _ in range(3)]

    found = three_calls(mp.autocast(function, "bfloat16"))
    wanted = three_calls(tf.function(function))
    for one, other in zip(
        tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(found[0][1], found[1][1])


def test_a_generator_advances_as_without_autocast():
    generators = [tf.random.Generator.from_seed(2) for _ in range(2)]
    functions = [
        lambda x, g=generators[0]: x + g.normal((3,)),
        lambda x, g=generators[1]: x + g.normal((3,)),
    ]
    found = mp.autocast(functions[0], "bfloat16")
    wanted = tf.function(functions[1])
    for _ in range(3):
        np.testing.assert_array_equal(found(tf.zeros(3)), wanted(tf.zeros(3)))
    np.testing.assert_array_equal(*(each.state for each in generators))


@pytest.mark.parametrize("differentiated", [False, True])
def test_effects_happen_once_a_call(differentiated):
    w, seen = weight(), []
    calls, turns = tf.Variable(0), tf.Variable(0)

    def note(x):
        seen.append(x.dtype)
        return np.float32(0)

    @mp.autocast(dtype="bfloat16")
    def function(x):
        calls.assign_add(1)
        y = x @ w
        tf.numpy_function(note, [y], tf.float32)

        def body(i, z):
            turns.assign_add(1)
            return i + 1, tf.tanh(z @ w)

        return tf.while_loop(lambda i, z: i < 4, body, (0, y))[1]

    for index in range(1, 4):
        if differentiated:
            with tf.GradientTape() as tape:
                y = function(normal(SIZE, SIZE))
            assert tape.gradient(y, w) is not None
        else:
            function(normal(SIZE, SIZE))
        assert (calls.numpy(), turns.numpy()) == (index, 4 * index)
        assert seen == [np.float32] * index


def test_an_assertion_in_a_function_still_fails():
    w = weight()

    @mp.autocast(dtype="bfloat16")
    def function(x):
        y = x @ w
        tf.debugging.assert_less(tf.reduce_max(y), 100.0, "too large")
        return y

    function(normal(SIZE, SIZE))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        function(normal(SIZE, SIZE, scale=1e4))


def test_what_is_printed_is_as_without_autocast(tmp_path):
    def function(x, path):
        tf.print("sum", tf.reduce_sum(x), x[0], output_stream=f"file://{path}")
        return x @ x

    paths = tmp_path / "found", tmp_path / "wanted"
    mp.autocast(function, "bfloat16")(tf.ones((4, 4)), str(paths[0]))
    tf.function(function)(tf.ones((4, 4)), str(paths[1]))
    assert paths[0].read_text() == paths[1].read_text() != ""


@pytest.mark.parametrize("chained", [False, True])
def test_casts_a_weight_once(chained):
    w = weight()

    @mp.autocast(dtype="bfloat16")
    def function(x):
        results = []
        for _ in range(5):
            y = tf.matmul(x, w)
            results.append(tf.tanh(y))
            x = results[-1] if chained else x
        return tf.add_n(results)

    concrete = function.get_concrete_function(normal(SIZE, SIZE))
    types = [op.type for op in concrete.graph.get_operations()]
    assert types.count("MatMul") == 5
    assert types.count("ReadVariableOp") == 1
    # One of the argument, one of the weight.
    assert lowering_casts(nodes(concrete)) == 2


def test_reads_and_casts_a_weight_again_after_it_is_written():
    w = weight()

    @mp.autocast(dtype="bfloat16")
    def function(x):
        first = x @ w
        w.assign_add(tf.ones_like(w))
        return first, x @ w

    x = normal(SIZE, SIZE)
    before = w.numpy()
    first, second = function(x)
    assert distance(first, tf.constant(x.numpy() @ before)) < 1e-2
    assert distance(second, tf.constant(x.numpy() @ (before + 1))) < 1e-2


def test_sees_what_is_assigned_between_calls():
    w = weight()
    function = mp.autocast(lambda x: x @ w, "bfloat16")
    x = normal(SIZE, SIZE)
    first = function(x)
    w.assign(2 * w)
    np.testing.assert_array_equal(function(x), 2 * first)


def test_casts_the_weights_of_a_loop_outside_of_it():
    w, u = weight(1), weight(2)

    @mp.autocast(dtype="bfloat16")
    def function(x):
        def body(i, state):
            return i + 1, tf.tanh(state @ w) + tf.tanh(x @ u)

        return tf.while_loop(lambda i, _: i < 7, body, (0, x))[1]

    concrete = function.get_concrete_function(normal(SIZE, SIZE))
    # Inside of the loop the state alone, which it carries in float32.
    assert lowering_casts(in_loops(concrete)) == 1
    assert lowering_casts(nodes(concrete)) == 1 + 3


def test_casts_the_weights_of_a_loop_in_a_loop_outside_of_both():
    w = weight()

    @mp.autocast(dtype="bfloat16")
    def function(x):
        def outer(i, x):
            inner = tf.while_loop(
                lambda j, _: j < 2, lambda j, y: (j + 1, tf.tanh(y @ w)), (0, x)
            )
            return i + 1, inner[1]

        return tf.while_loop(lambda i, _: i < 3, outer, (0, x))[1]

    concrete = function.get_concrete_function(normal(SIZE, SIZE))
    assert lowering_casts(in_loops(concrete)) == 1
    assert lowering_casts(nodes(concrete)) == 2


TURNS = 300


def test_sums_the_gradient_of_a_weight_over_a_loop_in_float32():
    w = weight()
    x = normal(SIZE, SIZE, seed=3)
    upstream = normal(SIZE, SIZE, seed=4)

    @mp.autocast(dtype="bfloat16")
    def function(x):
        def body(i, total):
            return i + 1, total + tf.matmul(x, w)

        return tf.while_loop(
            lambda i, _: i < TURNS,
            body,
            (0, tf.zeros_like(x)),
            maximum_iterations=TURNS,
        )[1]

    with tf.GradientTape() as tape:
        tape.watch(x)
        total = function(x)
    found = tape.gradient(total, [w, x], upstream)
    # Each turn adds the same to the gradient of the weight.
    term = x.numpy().astype("float64").T @ upstream.numpy()
    assert distance(found[0], tf.constant(TURNS * term)) < 1e-2
    term = upstream.numpy().astype("float64") @ w.numpy().T
    assert distance(found[1], tf.constant(TURNS * term)) < 1e-2
    # A sum in bfloat16 stops growing at 256 of them.
    term = tf.cast(term, tf.bfloat16)
    low = functools.reduce(tf.add, [term] * TURNS)
    exact = tf.cast(term, tf.float32) * TURNS
    assert distance(tf.cast(low, tf.float32), exact) > 0.05


def test_traces_a_function_once_for_each_signature():
    w, traced = weight(), []

    @mp.autocast(dtype="bfloat16")
    def function(x, flag=True):
        traced.append(x.shape)
        return x @ w if flag else x

    for _ in range(3):
        function(normal(SIZE, SIZE))
        function(normal(SIZE, SIZE, seed=5), flag=True)
    assert len(traced) == 1
    function(normal(4, SIZE))
    function(normal(SIZE, SIZE), False)
    assert len(traced) == 3
    outer = tf.function(lambda x: function(x))
    outer(normal(SIZE, SIZE))
    assert len(traced) == 3


def test_traces_a_function_with_a_signature_once():
    traced = []

    @mp.autocast(
        dtype="bfloat16",
        input_signature=(tf.TensorSpec((None, SIZE), tf.float32),),
    )
    def function(x):
        traced.append(x.shape)
        return tf.matmul(x, x, transpose_b=True)

    for rows in (2, 3, 4):
        assert function(normal(rows, SIZE)).shape == (rows, rows)
    assert len(traced) == 1


def in_a_loop(function):
    return lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, function(y)), (0, x)
    )[1]


def in_a_branch(function):
    return lambda x: tf.cond(x[0, 0] > -1e3, lambda: function(x), lambda: x)


def in_a_function(function):
    return tf.function(lambda x: function(x))


def in_a_compiled_function(function):
    return tf.function(lambda x: function(x), jit_compile=True)


def in_itself(function):
    return lambda x: function(x)


PLACES = [
    in_itself,
    in_a_loop,
    in_a_branch,
    in_a_function,
    in_a_compiled_function,
]
places = pytest.mark.parametrize("place", PLACES)


def product(x):
    """An op of a type of its own, so that the census finds it."""
    return tf.einsum("ab,bc->ac", x, x) / 4.0


@places
def test_leaves_what_is_inside_of_full_precision(place):
    w = weight()
    region = mp.full_precision(place(product))
    function = mp.autocast(lambda x: tf.tanh(region(x @ w) @ w), "bfloat16")
    found = census(function.get_concrete_function(normal(SIZE, SIZE)))
    assert found["MatMul"] == {"bfloat16"}
    assert found["Einsum"] == {"float32"}


@places
def test_leaves_full_precision_inside_of_other_things(place):
    w = weight()
    inner = place(mp.full_precision(product))
    function = mp.autocast(lambda x: tf.tanh(inner(x @ w) @ w), "bfloat16")
    found = census(function.get_concrete_function(normal(SIZE, SIZE)))
    assert found["MatMul"] == {"bfloat16"}
    assert found["Einsum"] == {"float32"}


@places
def test_full_precision_has_the_bits_of_float32(place):
    region = mp.full_precision(place(product))
    x = normal(SIZE, SIZE)
    np.testing.assert_array_equal(
        mp.autocast(lambda x: region(x), "bfloat16")(x),
        tf.function(place(product))(x),
    )


@places
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_honours_an_autocast_inside_of_another(place, dtype):
    w = weight()
    inner = place(mp.autocast(product, dtype))
    function = mp.autocast(lambda x: tf.tanh(inner(x @ w) @ w), "bfloat16")
    x = normal(SIZE, SIZE)
    found = census(function.get_concrete_function(x))
    assert found["MatMul"] == {"bfloat16"}
    assert found["Einsum"] == {dtype}
    wanted = tf.tanh(place(product)(x @ w) @ w)
    assert distance(function(x), wanted) < 3e-2


@places
def test_honours_autocast_around_it_where_it_is_inside_of_full_precision(place):
    inner = mp.full_precision(place(mp.autocast(product, "float16")))
    function = mp.autocast(lambda x: inner(x) @ x, "bfloat16")
    found = census(function.get_concrete_function(normal(SIZE, SIZE)))
    assert found["MatMul"] == {"bfloat16"}
    assert found["Einsum"] == {"float16"}


def test_float32_is_off():
    w = weight()
    function = mp.autocast(lambda x: x @ w, "float32")
    x = normal(SIZE, SIZE)
    np.testing.assert_array_equal(function(x), x @ w)
    np.testing.assert_array_equal(tf.function(function)(x), x @ w)


class Layer(tf.Module):
    def __init__(self, seed):
        super().__init__()
        self.w = weight(seed)

    @mp.autocast(dtype="bfloat16")
    def __call__(self, x):
        return tf.tanh(x @ self.w)

    @mp.autocast(dtype="bfloat16")
    def twice(self, x):
        return self(self(x))


def test_decorates_methods():
    layers = Layer(1), Layer(2)
    x = normal(SIZE, SIZE)
    for layer in layers:
        w = layer.w.numpy()
        wanted = np.tanh(np.tanh(x.numpy() @ w) @ w)
        with tf.GradientTape() as tape:
            found = layer.twice(x)
        assert distance(found, tf.constant(wanted)) < 1e-2
        assert tape.gradient(found, layer.w).dtype == tf.float32
    concrete = layers[0].twice.get_concrete_function(x)
    assert census(concrete)["MatMul"] == {"bfloat16"}
    assert layers[0].twice.get_concrete_function(x) is concrete
    assert layers[1].twice.get_concrete_function(x) is not concrete


def test_has_jacobians_and_forward_gradients():
    w = weight()

    def function(x):
        return tf.tanh(x @ w)

    def derivatives(function):
        x = normal(4, SIZE)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        with tf.autodiff.ForwardAccumulator(x, normal(4, SIZE, seed=6)) as f:
            z = function(x)
        return (
            tape.jacobian(y, w),
            tape.batch_jacobian(y, x),
            f.jvp(z),
        )

    for one, other in zip(
        derivatives(mp.autocast(function, "bfloat16")),
        derivatives(tf.function(function)),
        strict=True,
    ):
        assert one.dtype == other.dtype
        assert distance(one, other) < 3e-2


def test_keeps_a_static_shape_that_only_python_knows():
    def function(x):
        y = tf.numpy_function(np.tanh, [x], tf.float32, False)
        y.set_shape(x.shape)
        return y @ x

    x = normal(SIZE, SIZE)
    concrete = mp.autocast(function, "bfloat16").get_concrete_function(x)
    assert concrete.output_shapes == (SIZE, SIZE)
