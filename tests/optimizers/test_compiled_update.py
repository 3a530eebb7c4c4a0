"""The compiled update with masked writes: the same weights, no copies."""

import re

import bare_optimizers
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_mixprec as mp
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers.traced_apart import UnmaskedWriteError

LARGE = gradient_lists.LARGE_ELEMENTS
GRAPH = tf.function

# What has the bits of the bare optimizer in eager code; in graphs TensorFlow
# itself rewrites some arithmetic (x / sqrt(y) becomes x * rsqrt(y)).
EXACT_CLASSES = ("Adam", "AdamW", "Adamax", "Lion", "Nadam", "SGD")
EXACT_SETTINGS = set(bare_optimizers.SETTINGS) - {"clipnorm"}


def xla(function):
    return tf.function(function, jit_compile=True)


def eager(function):
    return function


def train(optimizer, call, bad_steps=()):
    """Takes three good steps, and bad ones where they are asked for."""
    variables = bare_optimizers.make_variables()
    optimizer.build(variables)
    scale = optimizer.scale_loss(1.0)
    step = call(lambda *gradients: optimizer.apply(list(gradients), variables))
    good = iter(range(3))
    for i in range(3 + len(bad_steps)):
        gradients = bare_optimizers.make_gradients(
            0 if i in bad_steps else next(good)
        )
        gradients = [tf.constant(g) * scale for g in gradients]
        if i in bad_steps:
            gradients[0] *= np.nan
        step(*gradients)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return bare_optimizers.snapshot(inner, variables)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *((name, "plain") for name in bare_optimizers.CLASSES),
        *(("Adam", s) for s in bare_optimizers.SETTINGS if s != "plain"),
        *(
            pytest.param("SGD", s, marks=pytest.mark.slow)
            for s in bare_optimizers.SETTINGS
            if s != "plain"
        ),
    ],
)
@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(False, id="update"),
        pytest.param(True, id="whole", marks=pytest.mark.slow),
    ],
)
def test_weights_and_slots(name, setting, whole):
    """Those of the bare optimizer, also where the whole step is compiled."""
    expected = train(
        bare_optimizers.make(name, setting), xla if whole else eager
    )
    optimizer = mp.wrap(
        bare_optimizers.make(name, setting), jit_compile=True, min_scale=2.0**15
    )
    got = train(optimizer, xla if whole else GRAPH, bad_steps=(1, 3, 4))
    assert int(optimizer.skipped_steps) == 3
    exact = (
        not whole and name in EXACT_CLASSES and setting in EXACT_SETTINGS
    ) and (name, setting) != ("SGD", "accumulation")
    for a, b in zip(got, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            # A few roundings of float32 in each of three steps.
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-7)


def take_large_steps(optimizer, gradients):
    """Takes steps in graph mode with variables that are worth compiling."""
    variables = [
        keras.Variable(np.ones(g.shape, "float32")) for g in gradients[0]
    ]
    optimizer.build(variables)
    scale = optimizer.scale_loss(1.0)

    @tf.function
    def step(*gradients):
        optimizer.apply([g * scale for g in gradients], variables)

    for each in gradients:
        step(*(tf.constant(g) for g in each))
    return step, [v.numpy() for v in variables]


def is_compiled(step):
    """Returns whether a traced step has a part that XLA compiles."""
    (concrete,) = step._list_all_concrete_functions()
    functions = concrete.graph.as_graph_def().library.function
    return any(f.attr["_XlaMustCompile"].b for f in functions)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {}),
        ("Adam", {"amsgrad": True}),
        ("Adam", {"global_clipnorm": 1.0}),
        ("Adam", {"clipvalue": 0.5}),
        ("Adam", {"use_ema": True}),
        ("Adamax", {}),
        ("AdamW", {"weight_decay": 0.1}),
        ("Lion", {}),
        ("Nadam", {}),
    ],
    ids=str,
)
def test_large_variables_are_compiled_with_the_same_bits(name, settings):
    rng = np.random.default_rng(0)
    gradients = [
        [
            rng.normal(size=shape).astype("float32")
            for shape in ((LARGE,), (300, 257))
        ]
        for _ in range(3)
    ]
    optimizer_class = getattr(keras.optimizers, name)
    step, got = take_large_steps(
        mp.wrap(optimizer_class(0.1, **settings)), gradients
    )
    assert is_compiled(step)
    bare = optimizer_class(0.1, **settings)
    variables = [keras.Variable(np.ones_like(g)) for g in gradients[0]]
    for each in gradients:
        bare.apply([tf.constant(g) for g in each], variables)
    for a, b in zip(got, variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [
        pytest.param(keras.optimizers.SGD, LARGE - 1, id="small"),
        pytest.param(keras.optimizers.RMSprop, LARGE, id="another_class"),
        pytest.param(
            type("Mine", (keras.optimizers.SGD,), {}), LARGE, id="of_ones_own"
        ),
        pytest.param(
            lambda: keras.optimizers.SGD(clipnorm=1.0), LARGE, id="clipnorm"
        ),
        pytest.param(
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
            LARGE,
            id="accumulation",
        ),
    ],
)
def test_what_auto_leaves_alone(optimizer, size):
    gradients = [[np.ones(size, "float32")]]
    step, _ = take_large_steps(mp.wrap(optimizer()), gradients)
    assert not is_compiled(step)
    step, _ = take_large_steps(
        mp.wrap(optimizer(), jit_compile=True), gradients
    )
    assert is_compiled(step)


def test_false_is_obeyed():
    optimizer = mp.wrap("adam", jit_compile=False)
    step, _ = take_large_steps(optimizer, [[np.ones(LARGE, "float32")]])
    assert not is_compiled(step)


def compiled_step(optimizer, count=3, size=LARGE, dtype="float32"):
    """Returns the optimized HLO of a step that is compiled as a whole."""
    variables = [
        keras.Variable(np.ones(size), dtype=dtype) for _ in range(count)
    ]
    optimizer.build(variables)
    if not isinstance(optimizer, mp.MasterWeightOptimizer):
        optimizer.scale_loss(1.0)

    @tf.function(jit_compile=True)
    def step(*gradients):
        optimizer.apply(list(gradients), variables)

    gradients = [tf.ones(size, dtype)] * count
    step(*gradients)
    return step.experimental_get_compiler_ir(*gradients)(stage="optimized_hlo")


def instructions(hlo, operation, size=LARGE, dtype="f32"):
    """Counts the instructions whose result has `size` elements."""
    entry = hlo[hlo.index("ENTRY") :]
    pattern = rf"= \(?{dtype}\[{size}\][^=]* {operation}\("
    return len(re.findall(pattern, entry))


@pytest.mark.parametrize(
    ("name", "slots"), [("SGD", 0), ("Adam", 2), ("AdamW", 2)]
)
def test_nothing_is_copied_and_nothing_branches(name, slots):
    """As many full-size passes as the bare optimizer has, and one to judge.

    Lion is not here: it reads its moment before it writes it, which costs a
    copy.
    """
    optimizer_class = getattr(keras.optimizers, name)
    bare = compiled_step(optimizer_class(0.1))
    ours = compiled_step(mp.wrap(optimizer_class(0.1)))
    theirs = compiled_step(
        keras.optimizers.LossScaleOptimizer(optimizer_class(0.1))
    )
    assert instructions(ours, "copy") == instructions(bare, "copy") == 0
    # TensorFlow 2.20 compiles the bare optimizer into more passes than ours.
    assert instructions(ours, "fusion") <= instructions(bare, "fusion")
    if slots:  # The test can fail: a branch makes XLA copy the slots.
        assert instructions(theirs, "copy") >= 3 * slots
    # The one conditional looks at gradients again if a sum is not finite.
    assert len(re.findall(r" conditional\(", ours)) == 1


# A loop over elements: older versions of XLA call some of them.
PASS = "(?:fusion|call)"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("SGD", marks=pytest.mark.slow),
        pytest.param("Adam", marks=pytest.mark.slow),
        "AdamW",
    ],
)
def test_masters_cost_one_write_of_the_weights(name):
    """And no pass over anything in float32 that the bare optimizer lacks."""
    optimizer_class = getattr(keras.optimizers, name)
    bare = compiled_step(optimizer_class(0.1))
    ours = compiled_step(
        mp.MasterWeightOptimizer(optimizer_class(0.1)), dtype="bfloat16"
    )
    assert instructions(ours, "copy") == 0
    assert instructions(ours, "copy", dtype="bf16") == 0
    assert instructions(ours, PASS) <= instructions(bare, PASS)
    assert instructions(ours, PASS, dtype="bf16") == 3  # variables
    halves = compiled_step(
        mp.MasterWeightOptimizer(optimizer_class(0.1), "remainder"),
        dtype="bfloat16",
    )
    for dtype in ("f32", "bf16", "s16"):
        assert instructions(halves, "copy", dtype=dtype) == 0
    assert instructions(halves, PASS) <= instructions(bare, PASS)
    assert instructions(halves, PASS, dtype="bf16") == 3
    assert instructions(halves, PASS, dtype="s16") == 3


def test_a_skipped_step_runs_the_same_operations():
    """There is no branch in the graph around the update, only masks."""
    optimizer = mp.wrap("adam")
    step, _ = take_large_steps(optimizer, [[np.ones(LARGE, "float32")]])
    (concrete,) = step._list_all_concrete_functions()
    graph = concrete.graph.as_graph_def()
    (compiled,) = (
        f for f in graph.library.function if f.attr["_XlaMustCompile"].b
    )
    operations = [node.op for node in compiled.node_def]
    assert "If" not in operations
    assert "StatelessIf" not in operations
    writes = [op for op in operations if op.startswith("Assign")]
    state = len(mp.LossScaleState._fields)
    # Weight, two moments, and the iteration counter.
    assert len(writes) == 3 + 1 + state
    # Each write to what a skipped step keeps has a mask.
    assert sum(op == "SelectV2" for op in operations) >= 4
    assert step.experimental_get_tracing_count() == 1
    step(tf.fill([LARGE], np.float32(np.nan)))
    assert step.experimental_get_tracing_count() == 1
    assert int(optimizer.skipped_steps) == 1


class WritesByHandle(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=tf.cast(learning_rate, variable.dtype),
            delta=gradient,
        )


class HasAVariableOfItsOwn(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.updates = tf.Variable(0, trainable=False)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.updates.assign_add(1)


@pytest.mark.parametrize(
    ("optimizer_class", "error"),
    [
        (WritesByHandle, AttributeError),
        (HasAVariableOfItsOwn, UnmaskedWriteError),
    ],
)
def test_a_write_that_cannot_be_masked_is_refused(optimizer_class, error):
    def step(**options):
        variable = keras.Variable([1.0])
        optimizer = mp.wrap(optimizer_class(1.0), **options)
        optimizer.build([variable])
        optimizer.scale_loss(1.0)
        apply = tf.function(lambda g: optimizer.apply([g]))
        for gradient in (2.0**14, np.nan):
            apply(tf.constant([gradient]))
        return variable, optimizer.inner_optimizer

    with pytest.raises(error):
        step(jit_compile=True)
    variable, inner = step()  # in a branch nothing needs to be masked
    assert variable.numpy().tolist() == [0.5]
    if optimizer_class is HasAVariableOfItsOwn:
        assert int(inner.updates) == 1


def test_constraints_are_kept_and_masked():
    variable = keras.Variable(np.full(3, 0.5, "float32"))
    variable.constraint = keras.constraints.NonNeg()
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), jit_compile=True)
    optimizer.build([variable])
    scale = optimizer.scale_loss(1.0)
    step = tf.function(lambda g: optimizer.apply([g * scale]))
    step(tf.constant([0.25, 1.0, -1.0]))
    assert variable.numpy().tolist() == [0.25, 0.0, 1.5]
    step(tf.constant([0.25, np.inf, -1.0]))
    assert variable.numpy().tolist() == [0.25, 0.0, 1.5]


def test_float8_scales_are_overwritten_and_masked():
    kernel, amax = keras.Variable([1.0]), keras.Variable([1.0])
    amax.overwrite_with_gradient = True
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), jit_compile=True)
    optimizer.build([kernel, amax])
    scale = optimizer.scale_loss(1.0)
    step = tf.function(lambda g, a: optimizer.apply([g * scale, a]))
    step(tf.constant([0.5]), tf.constant([3.0]))
    assert (float(kernel[0]), float(amax[0])) == (0.5, 3.0)
    for gradient, new_amax in ((np.nan, 4.0), (0.5, np.nan)):
        step(tf.constant([gradient]), tf.constant([new_amax]))
        assert (float(kernel[0]), float(amax[0])) == (0.5, 3.0)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_sparse_gradients_are_masked(name):
    def run(optimizer, bad_step):
        table = keras.Variable(np.ones((6, 2), "float32"))
        optimizer.build([table])
        scale = optimizer.scale_loss(1.0)

        @tf.function
        def step(values):
            slices = tf.IndexedSlices(
                values * scale, tf.constant([1, 4]), tf.constant([6, 2])
            )
            optimizer.apply([slices])

        for i in range(3):
            if i == bad_step:
                step(tf.constant([[np.nan, 0.0], [1.0, 1.0]]))
            step(tf.constant([[1.0, 2.0], [0.5, 0.25 * i]]))
        return table.numpy()

    optimizer_class = getattr(keras.optimizers, name)
    expected = run(optimizer_class(0.1), None)
    optimizer = mp.wrap(
        optimizer_class(0.1), jit_compile=True, min_scale=2.0**15
    )
    np.testing.assert_array_equal(run(optimizer, 1), expected)


def test_negative_zeros_survive_a_skipped_step():
    variable = keras.Variable(np.full(3, -0.0, "float32"))
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0, weight_decay=0.1), jit_compile=True
    )
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    tf.function(lambda: optimizer.apply([tf.fill([3], np.nan)]))()
    assert np.signbit(variable.numpy()).all()


@pytest.mark.parametrize("value", [3e38, 1e20, 1e-30], ids=str)
def test_large_finite_gradients_are_clipped_and_not_skipped(value):
    """Their sum and their squares overflow; they themselves do not."""
    variable = keras.Variable(np.zeros(LARGE, "float32"))
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0, global_clipnorm=1.0),
        dynamic=False,
        initial_scale=2.0**15,
    )
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    step = tf.function(lambda g: optimizer.apply([g]))
    step(tf.fill([LARGE], np.float32(value)))
    unscaled = np.float64(np.float32(value)) / 2.0**15
    norm = unscaled * np.sqrt(LARGE)
    if norm > 1e19:  # its square is not a float32 number
        assert int(optimizer.skipped_steps) == 1
        assert (variable.numpy() == 0.0).all()
    else:
        assert int(optimizer.skipped_steps) == 0
        np.testing.assert_allclose(
            variable.numpy(), -unscaled / max(norm, 1.0), rtol=1e-6
        )


def test_eager_code_keeps_the_compiled_update():
    variable = keras.Variable([1.0, 1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.5), jit_compile=True)
    optimizer.build([variable])
    for expected in (0.5, 0.0):
        scale = optimizer.scale_loss(1.0)
        optimizer.apply([tf.ones(2) * scale])
        assert variable.numpy().tolist() == [expected] * 2
    assert len(optimizer._traces._traces) == 1
    optimizer.learning_rate = 1.0
    optimizer.apply([tf.ones(2) * scale])
    assert variable.numpy().tolist() == [-1.0] * 2
    assert len(optimizer._traces._traces) == 1
    optimizer.clipvalue = 0.5
    optimizer.apply([tf.ones(2) * scale])
    assert variable.numpy().tolist() == [-1.5] * 2
    assert len(optimizer._traces._traces) == 2
