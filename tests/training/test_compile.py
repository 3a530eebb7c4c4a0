"""`mp.compile`: what it wraps, what it casts, and that nothing else changes.

Most models run eagerly: to trace a step takes ten times as long as to train.
"""

import copy
import warnings

import keras
import numpy as np
import pytest
import strategies
import tensorflow as tf
from keras import layers
from models import make_mlp
from models import regression_data

import tf_mixprec as mp
from tf_mixprec.policies import hardware
from tf_mixprec.training import compile as mp_compile

TOP_K = "sparse_top_k_categorical_accuracy"
OURS = {"compute_loss", "compute_metrics", "get_compile_config"}


def sequential(*inside):
    """Returns a float32 model around layers."""
    return keras.Sequential([keras.Input((4, 6)), *inside, layers.Dense(1)])


def map_policy(**policies):
    return keras.dtype_policies.DTypePolicyMap(
        "float32", {k: keras.DTypePolicy(v) for k, v in policies.items()}
    )


def classifier(policy="mixed_float16"):
    """Returns a model of 7 classes whose output is what the policy says."""
    keras.utils.set_random_seed(1)
    with mp.policy_scope(policy):
        return keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(7)]
        )


def classes(size=32):
    """Returns inputs of shape (size, 4) and classes below 7."""
    x = regression_data(size)[0]
    return x, np.arange(size) % 7


class AddsLoss(layers.Layer):
    """Adds a loss in its compute dtype: twice the mean of what it gets."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs) * 2.0)
        return inputs


# Which layers count


FLOAT16 = {
    "one_layer": lambda: sequential(layers.Dense(3, dtype="mixed_float16")),
    "pure": lambda: sequential(layers.Dense(3, dtype="float16")),
    "nested_model": lambda: sequential(
        keras.Sequential([layers.Dense(3, dtype="mixed_float16")])
    ),
    "wrapped_layer": lambda: sequential(
        layers.TimeDistributed(layers.Dense(3, dtype="mixed_float16"))
    ),
    "cell": lambda: sequential(
        layers.RNN(layers.GRUCell(3, dtype="mixed_float16"))
    ),
    "map_by_path": lambda: sequential(
        layers.Dense(3, name="d", dtype=map_policy(**{".*d": "float16"}))
    ),
    "output_only": lambda: sequential(
        layers.Dense(3, dtype=mp.Policy("float32", output_dtype="float16"))
    ),
    "float32_inside": lambda: sequential(
        mp.layers.LayerNormalization(dtype="mixed_float16")
    ),
    "beside_bfloat16": lambda: sequential(
        layers.Dense(3, dtype="mixed_bfloat16"),
        layers.Dense(3, dtype="mixed_float16"),
    ),
    "converted": lambda: mp.convert(
        sequential(layers.Dense(3)), "mixed_float16"
    ),
}


@pytest.mark.parametrize("make", FLOAT16.values(), ids=FLOAT16)
def test_any_layer_in_float16_gets_a_loss_scale(make):
    model = make()
    report = mp_compile(model, "sgd", "mse")
    assert report.optimizers == {"optimizer": "wrapped"}
    assert report.float16_layers
    assert isinstance(model.optimizer, mp.LossScaleOptimizer)
    assert model.optimizer.dynamic


def test_a_map_counts_before_the_layer_has_a_path():
    policy = map_policy(**{"sequential/d": "mixed_float16"})
    model = keras.Sequential([layers.Dense(3, dtype=policy)])
    assert mp_compile(model, "sgd").optimizers == {"optimizer": "wrapped"}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16_skips_and_does_not_scale(policy):
    model = make_mlp(policy=policy)
    report = mp_compile(model, "sgd", "mse", run_eagerly=True)
    assert report.optimizers == {"optimizer": "skips"}
    assert report.bfloat16_layers[-1].endswith("hidden")
    assert not report.float16_layers
    x, y = regression_data()
    before = model.get_weights()
    model.train_on_batch(np.full_like(x, np.inf), y)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.optimizer.loss_scale.numpy() == 1.0
    assert int(model.optimizer.skipped_steps) == 1


def test_bfloat16_trains_bit_for_bit_as_without():
    x, y = regression_data()

    def train(compile):
        model = make_mlp(policy="mixed_bfloat16")
        compile(model, "adam", "mse")
        model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return model.get_weights()

    stock = train(keras.Model.compile)
    for a, b in zip(stock, train(mp_compile), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.Adam(), None])
def test_float32_is_compiled_as_keras_does(optimizer):
    ours, stock = make_mlp(policy="float32"), make_mlp(policy="float32")
    report = mp_compile(ours, optimizer, "mse", metrics=["mae"])
    stock.compile(copy.deepcopy(optimizer), "mse", metrics=["mae"])
    if isinstance(optimizer, keras.optimizers.Optimizer):
        assert ours.optimizer is optimizer
    assert type(ours.optimizer) is type(stock.optimizer)
    assert vars(ours).keys() == vars(stock).keys()
    assert not report.metrics_cast
    assert report.reasons == ()
    assert report.jit_compile is stock.jit_compile


# Optimizers in every form


def test_an_optimizer_that_is_wrapped_is_kept():
    optimizer = mp.wrap("sgd", dynamic=False, initial_scale=8.0)
    model = make_mlp()
    report = mp_compile(model, optimizer, "mse")
    assert model.optimizer is optimizer
    assert report.optimizers == {"optimizer": "kept"}


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("form", ["instance", "config"])
def test_the_wrapper_of_keras_is_converted(policy, form):
    theirs = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.25), initial_scale=64.0
    )
    if form == "config":
        theirs = keras.optimizers.serialize(theirs)
    model = make_mlp(policy=policy)
    report = mp_compile(model, theirs, "mse")
    assert report.optimizers == {"optimizer": "converted"}
    assert isinstance(model.optimizer, mp.LossScaleOptimizer)
    assert model.optimizer.loss_scale.numpy() == 64.0
    assert float(model.optimizer.learning_rate) == 0.25


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_config_is_an_optimizer(policy):
    config = keras.optimizers.serialize(keras.optimizers.SGD(0.25))
    model = make_mlp(policy=policy)
    mp_compile(model, config, "mse")
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.25


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_fixed_factor_is_kept(policy):
    optimizer = keras.optimizers.SGD(loss_scale_factor=16.0)
    model = make_mlp(policy=policy)
    report = mp_compile(model, optimizer, "mse")
    assert report.optimizers == {"optimizer": "fixed"}
    assert float(model.optimizer.scale_loss(1.0)) == 16.0


# Losses and metrics


def names_and_values(policy, compile, **arguments):
    model = classifier(policy)
    x, y = classes()
    compile(model, keras.optimizers.SGD(0.0), run_eagerly=True, **arguments)
    return model.evaluate(x, y, verbose=0, return_dict=True)


def error(y_true, y_pred):
    """A custom metric: TensorFlow's kernel takes float32 and nothing else."""
    hits = tf.math.in_top_k(tf.cast(y_true, "int32"), y_pred, k=2)
    return 1.0 - tf.cast(hits, "float32")


METRICS = {
    "strings": lambda: {"metrics": [TOP_K, "acc"], "weighted_metrics": [TOP_K]},
    "object": lambda: {
        "metrics": [keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    },
    "function": lambda: {"metrics": [error, "accuracy"]},
}


@pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)
def test_metrics_have_the_names_and_values_of_float32(make):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = names_and_values(
        "float32", keras.Model.compile, loss=loss, **make()
    )
    found = names_and_values("mixed_float16", mp_compile, loss=loss, **make())
    assert list(found) == list(expected)
    for name in found:
        # Logits in float16 may swap two of 32 neighbors.
        np.testing.assert_allclose(found[name], expected[name], atol=2 / 32)


def test_a_metric_object_stays_the_one_that_was_given():
    metric = keras.metrics.SparseTopKCategoricalAccuracy(k=7)
    model = classifier()
    loss = "sparse_categorical_crossentropy"
    mp_compile(model, "sgd", loss, metrics=[metric], run_eagerly=True)
    x, y = classes()
    model.evaluate(x, y, verbose=0)
    assert metric in model.metrics[1].metrics
    assert float(metric.result()) == 1.0
    assert float(metric.count) == len(x)


@pytest.mark.parametrize(
    ("structure", "policy"),
    [
        ("dict", "mixed_float16"),
        ("list", "mixed_bfloat16"),
        ("nested", "mixed_float16"),
    ],
)
def test_losses_and_metrics_of_structures_get_float32(structure, policy):
    seen = []

    def spy(y_true, y_pred):
        seen.append(y_pred.dtype.name)
        return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)

    with mp.policy_scope(policy):
        inputs = keras.Input((4,))
        a, b = layers.Dense(1)(inputs), layers.Dense(1)(inputs)
    outputs = {
        "dict": {"a": a, "b": b},
        "list": [a, b],
        "nested": {"deep": [a, b]},
    }[structure]
    model = keras.Model(inputs, outputs)

    def like_outputs(value):
        return keras.tree.map_structure(lambda _: value, outputs)

    mp_compile(
        model,
        "sgd",
        loss=like_outputs(spy),
        # The oldest Keras takes metrics for flat outputs only.
        metrics=None if structure == "nested" else like_outputs(spy),
        weighted_metrics=None if structure == "nested" else like_outputs(spy),
        run_eagerly=True,
    )
    x, y = regression_data()
    model.fit(x, like_outputs(y), verbose=0)
    assert set(seen) == {"float32"}
    predictions = model.predict(x, verbose=0)
    dtypes = {p.dtype.name for p in keras.tree.flatten(predictions)}
    assert dtypes == {policy.removeprefix("mixed_")}


def test_float64_stays_float64():
    with mp.policy_scope("float64"):
        head = layers.Dense(1)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(2, dtype="mixed_float16"), head]
    )
    seen = []

    def spy(y_true, y_pred):
        seen.append(y_pred.dtype.name)
        return keras.ops.mean(y_pred, axis=-1)

    mp_compile(model, "sgd", "mse", metrics=[spy], run_eagerly=True)
    model.train_on_batch(*regression_data())
    assert set(seen) == {"float64"}


def test_masks_reach_losses_and_metrics():
    def evaluate(policy, compile):
        keras.utils.set_random_seed(1)
        with mp.policy_scope(policy):
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    layers.Embedding(9, 4, mask_zero=True),
                    layers.Dense(1),
                ]
            )
        compile(model, "sgd", "mse", weighted_metrics=["mae"], run_eagerly=True)
        x = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 0, 0]])
        y = np.where(x[..., None] == 0, 1e6, 0.5)  # what is masked is absurd
        return model.evaluate(x, y, verbose=0)

    np.testing.assert_allclose(
        evaluate("mixed_float16", mp_compile),
        evaluate("float32", keras.Model.compile),
        rtol=2**-9,  # float16 outputs of about 1
    )


def test_methods_of_the_models_own_get_float32():
    seen = []

    @keras.saving.register_keras_serializable("test_compile")
    class Own(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            seen.append(y_pred.dtype.name)
            seen.extend(loss.dtype.name for loss in self.losses)
            # As in Keras's guide: fails where their dtypes differ.
            return keras.ops.mean((y_pred - y) ** 2) + sum(self.losses)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            seen.append(y_pred.dtype.name)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    with mp.policy_scope("mixed_float16"):
        model = Own([AddsLoss(), layers.Dense(1, kernel_regularizer="l2")])
    mp_compile(model, "sgd", run_eagerly=True)
    x, y = regression_data()
    model.fit(x, y, validation_data=(x, y), verbose=0)
    assert set(seen) == {"float32"}


# Added losses and regularizers


@pytest.mark.parametrize("loss", ["mse", None])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_added_losses_are_summed_in_float32(policy, loss):
    with mp.policy_scope(policy):
        model = keras.Sequential(
            [
                keras.Input((1,)),
                layers.Dense(1, kernel_initializer="ones"),
                AddsLoss(),
            ]
        )
    mp_compile(model, keras.optimizers.SGD(0.0), loss, run_eagerly=True)
    x = np.full((4, 1), 3.0, "float32")
    y = np.zeros((4, 1), "float32")
    expected = 6.0 + (9.0 if loss else 0.0)  # exact in 16 bits
    assert model.evaluate(x, y, verbose=0) == expected
    assert model.train_on_batch(x, y) == expected
    assert model.fit(x, y, verbose=0).history["loss"] == [expected]


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_regularizers_of_16_bit_weights_compute_in_float32(policy):
    layer = layers.Dense(
        1,
        kernel_initializer=keras.initializers.Constant(8.0),
        kernel_regularizer=keras.regularizers.L2(0.5),
        dtype=policy,
    )
    model = keras.Sequential([keras.Input((5000,)), layer])
    report = mp_compile(
        model, keras.optimizers.SGD(0.0), "mse", run_eagerly=True
    )
    assert report.widened_regularizers == (layer.path,)
    loss = model.evaluate(np.zeros((2, 5000)), np.zeros((2, 1)), verbose=0)
    assert loss == 0.5 * 5000 * 8.0**2  # 160,000: float16 ends at 65504


def test_regularizers_of_float32_layers_stay():
    layer = layers.Dense(1, dtype="float32", activity_regularizer="l2")
    regularizer = layer.activity_regularizer
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(2, dtype="mixed_float16"), layer]
    )
    assert mp_compile(model, "sgd", "mse").widened_regularizers == ()
    assert layer.activity_regularizer is regularizer


def test_added_losses_under_a_strategy():
    strategy = strategies.make("mirrored_2")
    with strategy.scope(), mp.policy_scope("mixed_float16"):
        inputs = keras.Input((1,))
        hidden = AddsLoss()(inputs)
        outputs = [
            layers.Dense(1, kernel_initializer="ones")(hidden) for _ in range(2)
        ]
        model = keras.Model(inputs, outputs)
        mp_compile(model, keras.optimizers.SGD(0.0), ["mse", "mse"])
    x = np.full((8, 1), 3.0, "float32")
    y = [np.zeros((8, 1), "float32")] * 2
    logs = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    assert logs["loss"] == 2 * 9.0 + 6.0


# Saving, loading, cloning


def trained_model(eager):
    """Returns a model whose training needs all that `mp.compile` does."""
    keras.utils.set_random_seed(1)
    with mp.policy_scope("mixed_float16"):
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, activity_regularizer="l2"),
                layers.Dense(7),
            ]
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mp_compile(model, "adam", loss, metrics=[TOP_K], run_eagerly=eager)
    x, y = classes()
    model.fit(x, y, verbose=0)
    return model, x, y


def loaded(model, path):
    model.save(path)
    return keras.models.load_model(path)


COPIES = {
    "load_model": lambda model, path: loaded(model, path / "model.keras"),
    "clone_model": lambda model, path: keras.models.clone_model(model),
    "deepcopy": lambda model, path: copy.deepcopy(model),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_compiled_in_the_same_way(how, tmp_path):
    model, x, y = trained_model(eager=how != "load_model")
    new = COPIES[how](model, tmp_path)
    assert isinstance(new.optimizer, mp.LossScaleOptimizer)
    assert vars(new).keys() >= OURS
    if "clone" in how:
        new.set_weights(model.get_weights())
    else:
        assert int(new.optimizer.iterations) == 1
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    assert new.evaluate(x, y, verbose=0, return_dict=True) == expected
    history = new.fit(x, y, verbose=0).history
    assert history.keys() == expected.keys()
    assert np.isfinite(history["loss"][0])
    assert type(new) is keras.Sequential


def test_what_keras_compiles_is_loaded_as_before(tmp_path):
    model = make_mlp("sgd", "float32")
    new = loaded(model, tmp_path / "model.keras")
    assert type(new.optimizer) is keras.optimizers.SGD
    assert not vars(new).keys() & OURS


def test_a_class_with_its_own_config_of_compile_is_left_alone(tmp_path):
    @keras.saving.register_keras_serializable("test_compile")
    class Own(keras.Sequential):
        def get_compile_config(self):
            return {"rate": 0.5}

        def compile_from_config(self, config):
            assert config == {"rate": 0.5}
            mp_compile(self, keras.optimizers.Adam(config["rate"]), "mse")

    with mp.policy_scope("mixed_float16"):
        model = Own([keras.Input((4,)), layers.Dense(1)])
    mp_compile(model, keras.optimizers.Adam(0.5), "mse")
    new = loaded(model, tmp_path / "model.keras")
    assert float(new.optimizer.learning_rate) == 0.5


def test_a_second_call_replaces_the_first():
    model = classifier()
    x, y = classes()
    for _ in range(3):
        report = mp_compile(model, "sgd", metrics=["accuracy"])
    assert report.optimizers == {"optimizer": "wrapped"}
    method = model.compute_loss._tf_mixprec_original
    assert method == keras.Model.compute_loss.__get__(model)
    # Keras's is still there.
    loss = "sparse_categorical_crossentropy"
    model.compile(model.optimizer, loss, run_eagerly=True)
    model.train_on_batch(x, y)


# XLA


@pytest.mark.parametrize("gpus", [0, 1])
def test_auto_is_no_xla_for_bfloat16_without_a_visible_gpu(monkeypatch, gpus):
    """As on a machine with a GPU, where Keras takes XLA by default."""
    monkeypatch.setattr(
        keras.Model, "_resolve_auto_jit_compile", lambda _: True
    )
    monkeypatch.setattr(hardware, "visible_devices", lambda _: ["GPU"] * gpus)
    report = mp_compile(make_mlp(policy="mixed_bfloat16"), "sgd", "mse")
    assert report.jit_compile is (gpus == 1)
    assert ("oneDNN" in str(report)) is (gpus == 0)
    for policy in ("float32", "mixed_float16"):
        assert mp_compile(make_mlp(policy=policy), "sgd", "mse").jit_compile


@pytest.mark.parametrize("jit_compile", [True, False])
def test_an_explicit_value_is_obeyed(jit_compile):
    model = make_mlp(policy="mixed_bfloat16")
    report = mp_compile(model, "sgd", "mse", jit_compile=jit_compile)
    assert report.jit_compile is model.jit_compile is jit_compile


# A `compile` of the model's own


class Gan(keras.Model):
    """Two networks, each with its optimizer, and a loss of 1e-8 times theirs.

    Its gradients are zero in float16 if the loss is not scaled.
    """

    def __init__(self):
        super().__init__()
        kernel = {"use_bias": False, "kernel_initializer": "ones"}
        self.g = layers.Dense(1, **kernel)
        self.d = layers.Dense(1, **kernel)

    def call(self, x):
        return self.d(self.g(x))

    def compile(self, g_optimizer, optimizers=None, **kwargs):
        super().compile(**kwargs)
        self.g_optimizer = g_optimizer
        self.d_optimizer = (optimizers or {}).get("d", g_optimizer)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs = tf.cast(self(data[0], training=True), "float32")
            loss = self.g_optimizer.scale_loss(tf.reduce_sum(outputs) * 1e-8)
        variables = self.g.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.g_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


def test_every_optimizer_of_a_gan_is_wrapped():
    with mp.policy_scope("mixed_float16"):
        model = Gan()
    sgd, adam = keras.optimizers.SGD(1.0), keras.optimizers.Adam()
    report = mp_compile(model, g_optimizer=sgd, optimizers={"d": adam, "k": 3})
    assert report.optimizers == {
        "g_optimizer": "wrapped",
        "optimizers/d": "wrapped",
    }
    assert model.g_optimizer.inner_optimizer is sgd
    assert model.d_optimizer.inner_optimizer is adam
    model.fit(np.ones((2, 3), "float32"), np.ones((2, 1)), verbose=0)
    # 2 rows of 1e-8, in float16 gradients that are scaled by 2**15.
    change = 1.0 - model.g.kernel.numpy()
    np.testing.assert_allclose(change, 0.0, atol=2**-24)
    assert int(model.g_optimizer.iterations) == 1


def test_an_optimizer_that_is_given_twice_is_wrapped_once():
    with mp.policy_scope("mixed_float16"):
        model = Gan()
    sgd = keras.optimizers.SGD()
    mp_compile(model, g_optimizer=sgd, optimizers={"d": sgd})
    assert model.g_optimizer is model.d_optimizer


def test_a_bfloat16_loop_that_scales_nothing_is_not_warned():
    class Own(Gan):
        def train_step(self, data):
            self(data[0])
            variable = self.g.trainable_variables[0]
            self.g_optimizer.apply([variable * 0.5], [variable])
            return {"loss": 0.0}

    with mp.policy_scope("mixed_bfloat16"):
        model = Own()
    report = mp_compile(model, g_optimizer=keras.optimizers.SGD(1.0))
    assert report.optimizers == {"g_optimizer": "skips"}
    model.fit(np.ones((2, 3), "float32"), np.ones((2, 1)), verbose=0)
    assert model.g.kernel.numpy().tolist() == [[0.5]] * 3


def test_arguments_of_keras_reach_a_compile_that_takes_them():
    class Own(keras.Sequential):
        def compile(self, optimizer="adam", loss=None, **kwargs):
            self.arguments = {"loss": loss, **kwargs}
            super().compile(optimizer, loss, **kwargs)

    with mp.policy_scope("mixed_bfloat16"):
        model = Own([keras.Input((4,)), layers.Dense(1)])
    report = mp_compile(model, loss="mse", metrics=["mae"])
    assert report.optimizers == {"optimizer": "skips"}
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.Adam)
    assert model.arguments == {"loss": "mse", "metrics": ["mae"]}
    assert report.jit_compile is False


def test_an_optimizer_made_inside_is_warned_of():
    class Own(Gan):
        def compile(self):
            super().compile(keras.optimizers.SGD())

    with mp.policy_scope("mixed_float16"):
        model = Own()
    with pytest.warns(mp.LossScaleWarning, match="g_optimizer, d_optimizer"):
        mp_compile(model)
    with mp.policy_scope("mixed_bfloat16"):
        model = Own()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mp_compile(model)


# Errors and the report


def test_errors():
    with pytest.raises(TypeError, match=r"`model` must be a `keras.Model`"):
        mp_compile(layers.Dense(1), "sgd")
    with pytest.raises(
        ValueError, match=r"`auto_scale_loss` must not be given"
    ):
        mp_compile(make_mlp(), "sgd", auto_scale_loss=True)
    with pytest.raises(TypeError, match="must be a Keras optimizer"):
        mp_compile(make_mlp(), keras.optimizers.SGD)
    with pytest.raises(TypeError, match="nonsense"):
        mp_compile(make_mlp(), "sgd", nonsense=1)


def test_an_argument_that_the_own_compile_does_not_take():
    class Own(Gan):
        def compile(self, g_optimizer):
            super().compile(g_optimizer)

    with pytest.raises(TypeError, match=r"`loss` must be an argument .*g_opt"):
        mp_compile(Own(), loss="mse", g_optimizer=keras.optimizers.SGD())


def test_a_call_that_fails_changes_nothing():
    with mp.policy_scope("mixed_float16"):
        layer = layers.Dense(2, activity_regularizer="l2")
    regularizer = layer.activity_regularizer
    model = keras.Sequential([keras.Input((4,)), layer])
    with pytest.raises(ValueError, match="metrics"):
        mp_compile(model, "sgd", "mse", metrics="mae")
    assert layer.activity_regularizer is regularizer
    assert not vars(model).keys() & OURS


def test_the_report_is_readable():
    model = make_mlp()
    report = mp_compile(model, "sgd", "mse")
    assert str(report).splitlines() == [
        "optimizer: wrapped",
        "float16 layers: mlp/hidden",
        "bfloat16 layers: none",
        "jit_compile: False",
        "losses and metrics: cast to float32",
        "- float16 gradients below 6e-8 are zero: the loss is scaled.",
    ]
    with pytest.raises(AttributeError):
        report.jit_compile = True
