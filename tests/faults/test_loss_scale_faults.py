"""Faults of stock Keras's loss scaling: the right value of each in ours."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from fault_cases import kinds
from fault_cases import modes
from models import make_mlp
from models import regression_data

import tf_mixprec as mp


def make_step(optimizer, variable, call):
    """Returns a function that applies one gradient of the scaled loss."""
    optimizer.build([variable])
    optimizer.scale_loss(1.0)

    @call
    def step(gradient):
        optimizer.apply([gradient], [variable])

    return step


@modes(2)
def test_the_scale_has_a_floor(call):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.3))
    step = make_step(optimizer, variable, call)
    for _ in range(170):
        step(tf.constant([np.nan]))
    assert float(optimizer.loss_scale) == optimizer.min_scale == 1.0
    step(tf.constant([1.0]))
    np.testing.assert_allclose(variable.numpy(), [0.7], rtol=1e-7)


@modes(3)
def test_the_scale_has_a_ceiling(call):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.3), growth_interval=1)
    step = make_step(optimizer, variable, call)
    for _ in range(150):
        step(tf.constant([0.0]))
    assert float(optimizer.loss_scale) == 2.0**24
    for _ in range(50):
        step(tf.constant([2.0**24]))
    # 1 - 50 * 0.3, in 50 float32 roundings.
    np.testing.assert_allclose(variable.numpy(), [-14.0], rtol=1e-5)


@modes(5)
def test_the_loop_of_the_guide_works(call):
    variable = keras.Variable([2.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.5))
    optimizer.build([variable])

    @call
    def step():
        scaled_loss = optimizer.get_scaled_loss(tf.constant(2.0))
        gradients = optimizer.get_unscaled_gradients([tf.constant([32768.0])])
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))
        return scaled_loss, gradients

    scaled_loss, gradients = step()
    assert float(scaled_loss) == 65536.0
    assert gradients[0].numpy().tolist() == [1.0]
    assert variable.numpy().tolist() == [1.5]


@modes(6)
def test_a_fixed_scale_can_be_asked_for(call):
    variable = keras.Variable([0.0])
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=1024.0)
    step = make_step(optimizer, variable, call)
    for gradient in [1.0] * 20 + [np.inf] * 20:
        step(tf.constant([gradient]))
    assert float(optimizer.loss_scale) == 1024.0


@kinds(7, "policy", "mixed_float16", "float32")
def test_a_fixed_factor_survives_compile(policy):
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=1024.0)
    model = make_mlp(mp.wrap(optimizer), policy)
    assert float(model.optimizer.scale_loss(1.0)) == 1024.0
    x, y = regression_data()
    history = model.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.1 * history[0]
    assert float(model.optimizer.loss_scale) == 1024.0


@kinds(8, "dtype", "float16", "bfloat16")
def test_a_half_precision_loss_is_scaled_in_float32(dtype):
    optimizer = mp.wrap("sgd")
    loss = tf.constant(3.0, dtype)
    before = optimizer.scale_loss(loss)
    optimizer.build([keras.Variable([1.0])])
    after = optimizer.scale_loss(loss)
    for scaled in (before, after):
        assert (float(scaled), scaled.dtype) == (98304.0, "float32")


@kinds(10, "builds_first", True, False)
def test_a_checkpoint_restores_everything(builds_first, tmp_path):
    def make():
        return make_mlp(
            mp.wrap(
                keras.optimizers.Adam(0.01),
                initial_scale=256.0,
                growth_interval=3,
            )
        )

    x, y = regression_data()
    model, new = make(), make()
    model.fit(x, y, batch_size=8, verbose=0)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        str(tmp_path / "checkpoint")
    )
    if builds_first:
        new.optimizer.build(new.trainable_variables)
    tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(saved)
    new.optimizer.build(new.trainable_variables)
    assert float(new.optimizer.loss_scale) == 512.0
    for a, b in zip(
        model.optimizer.variables, new.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@kinds(11, "saver", "save", "ModelCheckpoint")
def test_a_keras_file_keeps_everything(saver, tmp_path):
    path = tmp_path / "model.keras"
    model = make_mlp(
        mp.wrap(
            keras.optimizers.Adam(0.01), initial_scale=256.0, growth_interval=3
        )
    )
    x, y = regression_data(40)
    callbacks = (
        [keras.callbacks.ModelCheckpoint(path)] if saver != "save" else []
    )
    model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    if saver == "save":
        model.save(path)
    keras.config.set_dtype_policy("float32")
    new = keras.saving.load_model(path)
    assert isinstance(new.optimizer, mp.LossScaleOptimizer)
    assert float(new.optimizer.loss_scale) == 512.0
    assert int(new.optimizer.good_steps) == 2
    for a, b in zip(
        model.optimizer.variables, new.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@kinds(12, "name", "adam", "sgd", "lion")
def test_set_weights_sets_the_inner_moments(name):
    def make(steps):
        variable = keras.Variable([1.0])
        optimizer = mp.wrap(keras.optimizers.get(name))
        step = make_step(optimizer, variable, lambda f: f)
        for _ in range(steps):
            step(tf.constant([32768.0]))
        return optimizer

    optimizer, new = make(3), make(0)
    new.set_weights([v.numpy() for v in optimizer.variables])
    assert int(new.iterations) == 3
    for a, b in zip(optimizer.variables, new.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@modes(13)
def test_apply_gradients_returns_the_iterations(call):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap("sgd")
    optimizer.build([variable])
    optimizer.scale_loss(1.0)

    @call
    def step():
        return optimizer.apply_gradients([(tf.constant([1.0]), variable)])

    for i in range(1, 5):
        assert int(step()) == int(optimizer.iterations) == i
    optimizer.iterations = 1
    assert int(step()) == 2


@modes(14)
def test_a_skipped_step_does_not_advance_the_schedule(call):
    variable = keras.Variable([1.0])
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = mp.wrap(keras.optimizers.SGD(schedule), initial_scale=4.0)
    make_step(optimizer, variable, call)(tf.constant([np.inf]))
    assert int(optimizer.iterations) == 0
    assert float(optimizer.learning_rate) == 1.0
    assert variable.numpy().tolist() == [1.0]
    assert float(optimizer.loss_scale) == 2.0
    # And it tells of the skip, as no stock optimizer does.
    assert optimizer.found_inf.numpy()
    assert int(optimizer.skipped_steps) == 1


@kinds(15, "callback", "ReduceLROnPlateau", "LearningRateScheduler")
def test_learning_rate_callbacks_reach_the_inner_optimizer(callback):
    callbacks = {
        "ReduceLROnPlateau": keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.1, patience=1, min_delta=1e9
        ),
        "LearningRateScheduler": keras.callbacks.LearningRateScheduler(
            lambda epoch, learning_rate: [0.5, 0.5, 0.05][epoch]
        ),
    }
    model = make_mlp(mp.wrap(keras.optimizers.SGD(0.5)))
    x, y = regression_data()
    history = model.fit(
        x, y, epochs=3, verbose=0, callbacks=[callbacks[callback]]
    )
    np.testing.assert_allclose(
        history.history["learning_rate"], [0.5, 0.5, 0.05], rtol=1e-6
    )
    last = 0.005 if callback == "ReduceLROnPlateau" else 0.05
    inner = model.optimizer.inner_optimizer
    assert float(inner.learning_rate) == pytest.approx(last)
    assert float(model.optimizer.learning_rate) == pytest.approx(last)


@kinds(16, "setting", "clipnorm", "global_clipnorm", "clipvalue")
def test_clipping_acts_on_unscaled_gradients(setting):
    for through_wrapper in (False, True):
        variable = keras.Variable([0.0, 0.0])
        inner = keras.optimizers.SGD(1.0)
        optimizer = mp.wrap(inner)
        setattr(optimizer if through_wrapper else inner, setting, 1.0)
        step = make_step(optimizer, variable, tf.function)
        step(tf.constant([3.0, 4.0]) * 2.0**15)  # the norm is 5, unscaled
        clipped = [-1, -1] if setting == "clipvalue" else [-0.6, -0.8]
        np.testing.assert_allclose(variable.numpy(), clipped, rtol=1e-6)


@modes(18)
def test_a_missing_gradient_passes(call):
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.1), initial_scale=2.0)
    optimizer.build([a, b])
    optimizer.scale_loss(1.0)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        call(
            lambda: optimizer.apply_gradients(
                [(tf.constant([4.0]), a), (None, b)]
            )
        )()
    np.testing.assert_allclose(a.numpy(), [0.8], rtol=1e-7)
    assert b.numpy().tolist() == [1.0]


@modes(19)
def test_no_gradient_at_all_is_the_plain_error(call):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap("sgd")
    optimizer.scale_loss(1.0)
    with pytest.raises(ValueError, match="No gradients provided") as error:
        call(lambda: optimizer.apply_gradients([(None, variable)]))()
    assert "Cond" not in str(error.value)


@modes(20)
def test_a_sparse_gradient_is_judged_without_its_table(call):
    variable = keras.Variable(np.ones((1000, 2), "float32"))
    optimizer = mp.wrap(keras.optimizers.SGD(1.0), initial_scale=4.0)
    step = make_step(optimizer, variable, call)

    def slices(values, indices):
        return tf.IndexedSlices(
            tf.constant(values), tf.constant(indices), tf.constant([1000, 2])
        )

    step(slices([[4.0, 4.0], [8.0, 8.0]], [3, 3]))
    assert variable.numpy()[3].tolist() == [-2.0, -2.0]
    assert variable.numpy()[4].tolist() == [1.0, 1.0]
    step(slices([[np.nan, 0.0]], [5]))
    assert float(optimizer.loss_scale) == 2.0
    assert np.isfinite(variable.numpy()).all()


@kinds(21, "outer", "ours_in_ours", "theirs_in_ours", "wrap")
def test_nothing_is_wrapped_twice(outer):
    optimizer = mp.wrap(keras.optimizers.SGD(0.5))
    if outer == "wrap":
        assert mp.wrap(optimizer) is optimizer
        return
    if outer == "theirs_in_ours":
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.5)
        )
    with pytest.raises(ValueError, match="must not be a LossScaleOptimizer"):
        mp.LossScaleOptimizer(optimizer)


@modes(26)
def test_a_custom_loop_trains(call):
    model = make_mlp()
    optimizer = mp.wrap(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    x, y = regression_data()

    @call
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            scaled_loss = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled_loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]
    assert float(optimizer.loss_scale) == 32768.0


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
@kinds(28, "callback", "ReduceLROnPlateau", "LearningRateScheduler", "none")
def test_a_multi_optimizer_trains(callback):
    sgd, adam = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    by_path = keras.optimizers.OptimizerMap(sgd)
    by_path[".*head/.*"] = adam
    optimizer = mp.wrap(keras.optimizers.MultiOptimizer(by_path))
    model = make_mlp(optimizer)
    x, y = regression_data()
    callbacks = {
        "none": [],
        "ReduceLROnPlateau": [
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=50)
        ],
        "LearningRateScheduler": [
            keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr)
        ],
    }[callback]
    losses = model.fit(x, y, epochs=20, verbose=0, callbacks=callbacks)
    losses = losses.history["loss"]
    assert losses[-1] < losses[0]
    before = model.get_weights()
    model.fit(np.full_like(x, np.nan), y, verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(sgd.iterations) == int(adam.iterations) == 20


@kinds(29, "where", "loop", "fit")
def test_a_moving_average_does_not_see_skipped_steps(where):
    if where == "fit":
        model = make_mlp(mp.wrap(keras.optimizers.SGD(0.1, use_ema=True)))
        x, y = regression_data()
        model.fit(
            x,
            y,
            validation_data=(x, y),
            epochs=2,
            verbose=0,
            callbacks=[keras.callbacks.SwapEMAWeights()],
        )
        assert np.isfinite(model.predict(x, verbose=0)).all()
        return
    variable = keras.Variable([1.0])
    optimizer = mp.wrap(
        keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5),
        initial_scale=4.0,
        growth_interval=10,
    )
    step = make_step(optimizer, variable, tf.function)
    for gradient in (4.0, np.nan, 2.0):
        step(tf.constant([gradient]))
    assert optimizer.use_ema
    assert variable.numpy().tolist() == [-1.0]
    optimizer.finalize_variable_values([variable])
    assert variable.numpy().tolist() == [-0.5]


@kinds(30, "schedule", True, False)
def test_from_config_does_not_eat_its_argument(schedule):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10) if schedule else 0.1
    config = mp.wrap(keras.optimizers.SGD(rate)).get_config()
    before = json.dumps(config)
    for _ in range(2):
        mp.LossScaleOptimizer.from_config(config)
        assert json.dumps(config) == before


@kinds(
    32,
    "arguments",
    {"initial_scale": 0.0},
    {"initial_scale": -8.0},
    {"initial_scale": np.inf},
    {"initial_scale": np.nan},
    {"dynamic_growth_steps": 0},
    {"dynamic_growth_steps": -5},
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="must"):
        mp.wrap("sgd", **arguments)


@kinds(34, "dynamic", True, False)
def test_a_config_of_tf_keras_loads(dynamic):
    inner = keras.saving.serialize_keras_object(keras.optimizers.SGD(0.1))
    optimizer = mp.LossScaleOptimizer.from_config(
        {
            "inner_optimizer": inner,
            "dynamic": dynamic,
            "initial_scale": 1024.0,
            "dynamic_growth_steps": 2000 if dynamic else None,
        }
    )
    assert optimizer.dynamic is dynamic
    assert float(optimizer.loss_scale) == 1024.0


@kinds(35, "place", "variables", "file")
def test_there_is_one_learning_rate_and_one_iteration(place, tmp_path):
    variable = keras.Variable([1.0])
    optimizer = mp.wrap(keras.optimizers.SGD(0.25))
    make_step(optimizer, variable, tf.function)(tf.constant([32768.0]))
    if place == "variables":
        found = {v.path.split("/")[-1]: v.numpy() for v in optimizer.variables}
        assert found["learning_rate"] == 0.25
        assert found["iteration"] == 1
        assert len(found) == len(optimizer.variables)
        return
    saved = tf.train.Checkpoint(optimizer=optimizer).save(
        str(tmp_path / "checkpoint")
    )
    names = [name for name, _ in tf.train.list_variables(saved)]
    assert sum("learning_rate" in name for name in names) == 1
    assert sum("iteration" in name for name in names) == 1


@kinds(53, "policy", "mixed_float16", "mixed_bfloat16")
def test_a_weight_regularizer_is_scaled_with_the_loss(policy):
    layer = keras.layers.Dense(
        1,
        use_bias=False,
        kernel_initializer=keras.initializers.Constant(1e-3),
        kernel_regularizer=keras.regularizers.L2(0.5),
        dtype=policy,
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(mp.wrap(keras.optimizers.SGD(1.0)), "mse")
    model.fit(np.zeros((4, 1)), np.zeros((4, 1)), verbose=0)
    # w - 1.0 * 2 * 0.5 * w, in float32.
    np.testing.assert_allclose(layer.kernel.numpy(), 0.0, atol=1e-9)


@kinds(69, "policy", "mixed_float16", "mixed_bfloat16")
def test_float8_scales_are_overwritten_and_survive_a_skip(policy):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the input layer has no float8
        model.quantize("float8")
    model.compile(mp.wrap(keras.optimizers.SGD(0.01)), "mse")
    x, y = regression_data()
    x = x + 1.0
    losses = model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    losses = losses.history["loss"]
    assert losses[-1] < 0.1 * losses[0]
    layer = model.layers[0]
    amax = float(np.max(layer.inputs_amax_history.numpy()))
    assert amax == pytest.approx(x.max(), rel=2**-8)
    before = [v.numpy() for v in model.trainable_variables]
    model.fit(np.full_like(x, np.nan), y, verbose=0)
    for a, b in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


@kinds(71, "dtype", "float16", "bfloat16")
def test_ctc_loss_of_half_precision_predictions_is_scaled(dtype):
    logits = tf.random.stateless_normal((1, 5, 4), [1, 2])
    labels = np.array([[1, 2]])
    optimizer = mp.wrap("sgd")
    loss = keras.losses.CTC()(labels, tf.cast(logits, dtype))
    exact = keras.losses.CTC()(labels, logits)
    scaled = optimizer.scale_loss(loss)
    assert scaled.dtype == "float32"
    np.testing.assert_allclose(
        float(scaled) / 2.0**15, float(exact), rtol=2**-6
    )


@kinds(78, "name", "learning_rate", "momentum", "weight_decay")
def test_settings_are_seen_through_two_wrappers(name):
    class Outer(keras.optimizers.SGD):
        pass

    optimizer = mp.wrap(Outer(0.5))
    inner = optimizer.inner_optimizer
    assert getattr(optimizer, name) is getattr(inner, name)
    setattr(optimizer, name, 0.25)
    assert float(getattr(optimizer, name)) == 0.25
    assert float(getattr(inner, name)) == 0.25


@kinds(81, "target", "wrapper", "inner")
def test_settings_on_the_wrapper_are_not_ignored(target):
    variable = keras.Variable([1.0], name="bias")
    inner = keras.optimizers.SGD(1.0, weight_decay=0.5)
    optimizer = mp.wrap(inner, initial_scale=1.0)
    target = optimizer if target == "wrapper" else inner
    target.exclude_from_weight_decay(var_names=["bias"])
    target.clipnorm = 0.25
    make_step(optimizer, variable, tf.function)(tf.constant([1.0]))
    assert variable.numpy().tolist() == [0.75]


@kinds(82, "jit_compile", True, False)
def test_jit_compile_changes_nothing(jit_compile):
    def train(jit_compile):
        model = make_mlp(
            mp.wrap(keras.optimizers.SGD(0.05), initial_scale=256.0),
            jit_compile=jit_compile,
        )
        x, y = regression_data(64)
        model.fit(x, y, verbose=0, shuffle=False)
        model.fit(np.full_like(x[:32], np.nan), y[:32], verbose=0)
        assert float(model.optimizer.loss_scale) == 128.0
        return model.get_weights()

    for a, b in zip(train(jit_compile), train(False), strict=True):
        # float16 rounds differently where XLA fuses: 2**-11 of a step.
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
