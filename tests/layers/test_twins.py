"""Under float32, a layer is its twin of Keras's, bit for bit."""

import inspect

import keras
import numpy as np
import pytest
from layers.cases import CASES
from layers.cases import arrays
from layers.cases import parameters

from tf_mixprec import layers

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses a gradient tape"
)
PAIRS = [
    pytest.param(theirs, ours, id=ours.__name__)
    for theirs, ours in layers.TWINS.items()
]


def assert_equal(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_layer_has_a_case_and_a_twin():
    names = {ours.__name__ for ours in layers.TWINS.values()}
    assert names == {case.name for case in CASES}
    exported = {getattr(layers, x).__name__ for x in layers.__all__}
    assert names == exported - {"CastTo", "Precision"}


def test_twin_of():
    class Mine(keras.layers.Softmax):
        pass

    assert layers.twin_of(keras.layers.Softmax) is layers.Softmax
    assert layers.twin_of(keras.layers.AvgPool2D) is layers.AveragePooling2D
    for other in (Mine, layers.Softmax, keras.layers.Dense):
        assert layers.twin_of(other) is None


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_class_looks_like_the_twin(theirs, ours):
    assert issubclass(ours, theirs)
    assert ours.__name__ == theirs.__name__
    assert ours.__module__.startswith("tf_mixprec.layers.")
    for method in (ours, ours.call, ours.build):
        own = inspect.signature(method)
        other = {ours: theirs, ours.call: theirs.call}.get(method, theirs.build)
        assert list(own.parameters) == list(inspect.signature(other).parameters)
    name = keras.saving.get_registered_name(ours)
    assert name == f"tf_mixprec>{ours.__name__}"


@pytest.mark.parametrize("case", parameters())
def test_name_and_config_are_those_of_the_twin(case):
    configs = []
    for module in (keras.layers, layers):
        keras.utils.clear_session(free_memory=False)  # names start anew
        layer = case.make(module)
        configs.append(layer.get_config())
    config = configs[0]
    assert config == configs[1]
    assert type(layer).from_config(config).get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(serialized)
    assert type(again) is type(layer)
    assert again.get_config() == config


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_losses_are_those_of_the_twin(case):
    results = []
    for module in (keras.layers, layers):
        layer = case.make(module)
        outputs = case.call(layer, case.inputs(2))
        results.append([*arrays(outputs), *arrays(layer.losses)])
    assert_equal(*results)


def trained(case, module, call, steps=2):
    """Returns gradients and weights after some steps."""
    layer = case.make(module)
    inputs = [tf.constant(x) for x in case.inputs(2)]
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)
    training = "training" in layer.call_signature_parameters
    arguments = {"training": True} if training else {}

    @call
    def step():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.nest.flatten(case.call(layer, inputs, **arguments))
            # Not the plain sum, whose gradient would hide an error.
            loss = sum(tf.reduce_sum(tf.sin(y)) for y in outputs)
            loss += sum(layer.losses)
        variables = [v.value for v in layer.trainable_variables]
        gradients = tape.gradient(loss, [*variables, *inputs])
        if variables:
            optimizer.apply(gradients[: len(variables)])
        return [tf.convert_to_tensor(g) for g in gradients if g is not None]

    keras.utils.set_random_seed(1)
    gradients = [arrays(step()) for _ in range(steps)]
    return [*sum(gradients, []), *layer.get_weights()]


@TENSORFLOW
@pytest.mark.parametrize("case", parameters())
def test_gradients_and_steps_are_those_of_the_twin(case):
    assert_equal(
        *(
            trained(case, module, lambda step: step)
            for module in (keras.layers, layers)
        )
    )


@TENSORFLOW
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_steps_are_those_of_the_twin(case, jit_compile):
    def call(step):
        return tf.function(step, jit_compile=jit_compile)

    results = [trained(case, module, call) for module in (keras.layers, layers)]
    if not jit_compile:
        assert_equal(*results)
        return
    for a, b in zip(*results, strict=True):
        # XLA fuses what is not the same graph in another way.
        scale = max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("case", parameters())
def test_weights_files_are_exchanged(case, tmp_path):
    models = []
    for module in (keras.layers, layers):
        inputs = case.specs()
        layer = case.make(module, weights=None)
        models.append(keras.Model(inputs, case.call(layer, inputs)))
    path = str(tmp_path / "x.weights.h5")
    for source, target in (models, models[::-1]):
        weights = [np.full(w.shape, 0.25, w.dtype) for w in source.weights]
        source.set_weights(weights)
        target.set_weights([np.zeros(w.shape, w.dtype) for w in target.weights])
        source.save_weights(path)
        target.load_weights(path)
        assert_equal(target.get_weights(), weights)
