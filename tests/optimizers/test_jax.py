"""The same optimizer on another Keras backend, by way of `stateless_apply`."""

import os
import subprocess
import sys

import pytest

CODE = """
import jax
import keras
import numpy as np
import tf_mixprec as mp

assert keras.backend.backend() == "jax"

# fit, with a step that overflows.
keras.config.set_dtype_policy("mixed_float16")
model = keras.Sequential([
    keras.Input((4,)),
    keras.layers.Dense(8, "relu"),
    keras.layers.Dense(1, dtype="float32"),
])
optimizer = mp.wrap(
    keras.optimizers.Adam(0.01), initial_scale=8.0, growth_interval=5
)
model.compile(optimizer, "mse")
x = np.random.default_rng(0).random((32, 4), "float32")
y = x.sum(axis=1, keepdims=True)
losses = model.fit(x, y, epochs=10, batch_size=16, verbose=0).history["loss"]
assert losses[-1] < losses[0]
assert float(model.optimizer.loss_scale) == 2.0**7
before = model.get_weights()
bad = model.fit(np.full_like(x, np.nan), y, batch_size=16, verbose=0,
                callbacks=[mp.callbacks.LossScaleLogger()])
assert bad.history["loss_scale"] == [2.0**5]
assert bad.history["skipped_steps"] == [2]
for a, b in zip(before, model.get_weights()):
    np.testing.assert_array_equal(a, b)

# stateless_apply in jit equals the bare optimizer bit for bit.
def run(optimizer, scale):
    variables = [keras.Variable(np.ones(3, "float32"))]
    optimizer.build(variables)
    step = jax.jit(optimizer.stateless_apply)
    values = [v.value for v in variables]
    state = [v.value for v in optimizer.variables]
    for i in range(4):
        gradient = scale * np.array([0.5, -i, 1e-6], "float32")
        values, state = step(state, [gradient], values)
    return values, state

bare, _ = run(keras.optimizers.Adam(0.1), 1.0)
wrapped, state = run(mp.wrap(keras.optimizers.Adam(0.1)), 2.0**15)
np.testing.assert_array_equal(bare[0], wrapped[0])
assert int(state[1]) == 4  # good_steps

# Stateful calls work in eager code.
variable = keras.Variable([1.0, 2.0])
other = keras.Variable([1.0])
optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=4.0)
optimizer.build([variable, other])
optimizer.scale_loss(1.0)
optimizer.apply([jax.numpy.array([4.0, 2.0])], [variable])
np.testing.assert_array_equal(variable.numpy(), [0.0, 1.5])
np.testing.assert_array_equal(other.numpy(), [1.0])
optimizer.apply([jax.numpy.array([jax.numpy.inf, 2.0])], [variable])
np.testing.assert_array_equal(variable.numpy(), [0.0, 1.5])
assert float(optimizer.loss_scale) == 2.0
gradients, found_inf = optimizer.unscale([jax.numpy.array([2.0, 2.0]), None])
optimizer.apply_unscaled(gradients, None, found_inf)
np.testing.assert_array_equal(variable.numpy(), [-1.0, 0.5])
assert int(optimizer.iterations) == 2
print("done")
"""


def test_jax():
    pytest.importorskip("jax")
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("done\n")
