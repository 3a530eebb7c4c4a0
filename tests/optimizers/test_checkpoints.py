"""Stop anywhere, restore, go on: the same bits as never having stopped."""

import copy
import pickle

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from models import make_mlp
from models import regression_data

import tf_mixprec as mp

X, Y = regression_data()
BAD_X = np.full_like(X[:8], np.nan)


def make_optimizer():
    return mp.wrap(
        keras.optimizers.Adam(0.01, name="adam"),
        initial_scale=256.0,
        growth_interval=3,
        name="loss_scale",
    )


def make_model():
    return make_mlp(make_optimizer())


def train(model, epochs=1, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    model.fit(X, Y, epochs=epochs, **options)
    model.fit(BAD_X, Y[:8], batch_size=8, verbose=0)


def everything(model):
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def assert_same(a, b):
    for x, y in zip(everything(a), everything(b), strict=True):
        np.testing.assert_array_equal(x, y)


def by_keras_file(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def by_checkpoint(model, path):
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved = checkpoint.save(str(path / "checkpoint"))
    new = make_model()
    new.optimizer.build(new.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=new, optimizer=new.optimizer)
    checkpoint.restore(saved).assert_existing_objects_matched()
    return new


def by_checkpoint_before_build(model, path):
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved = checkpoint.save(str(path / "checkpoint"))
    new = make_model()
    checkpoint = tf.train.Checkpoint(model=new, optimizer=new.optimizer)
    checkpoint.restore(saved)
    assert float(new.optimizer.loss_scale) == float(model.optimizer.loss_scale)
    new.optimizer.build(new.trainable_variables)
    return new


def by_set_weights(model, path):
    new = make_model()
    new.set_weights(model.get_weights())
    new.optimizer.build(new.trainable_variables)
    new.optimizer.set_weights([v.numpy() for v in model.optimizer.variables])
    return new


def by_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def by_state_tree(model, path):
    new = make_model()
    new.optimizer.build(new.trainable_variables)
    new.set_state_tree(model.get_state_tree())
    return new


@pytest.mark.parametrize(
    "copied",
    [
        by_keras_file,
        by_checkpoint,
        by_checkpoint_before_build,
        pytest.param(by_set_weights, marks=pytest.mark.slow),
        pytest.param(by_pickle, marks=pytest.mark.slow),
        pytest.param(by_state_tree, marks=pytest.mark.slow),
    ],
)
def test_a_restored_run_goes_on_with_the_same_bits(copied, tmp_path):
    model = make_model()
    train(model)
    new = copied(model, tmp_path)
    assert isinstance(new.optimizer, mp.LossScaleOptimizer)
    assert_same(model, new)
    assert int(new.optimizer.skipped_steps) == 1
    assert int(new.optimizer.iterations) == 4
    train(model, 2)
    train(new, 2)
    assert_same(model, new)


def test_backup_and_restore(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*callbacks):
        model = make_model()
        x = np.concatenate([X, BAD_X])
        y = np.concatenate([Y, Y[:8]])
        options = {"batch_size": 8, "verbose": 0, "shuffle": False}
        model.fit(x, y, epochs=4, callbacks=callbacks, **options)
        return model

    whole = fit()
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(backup, Interrupt())
    resumed = fit(keras.callbacks.BackupAndRestore(tmp_path))
    assert_same(whole, resumed)
    assert int(resumed.optimizer.skipped_steps) == 4


def test_model_checkpoint(tmp_path):
    model = make_model()
    path = tmp_path / "best.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="loss")
    model.fit(X, Y, verbose=0, epochs=2, callbacks=[checkpoint])
    assert_same(model, keras.saving.load_model(path))


def test_the_file_holds_every_variable_once(tmp_path):
    model = make_model()
    train(model)
    model.save_weights(tmp_path / "model.weights.h5")
    sizes = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file["optimizer"].visititems(
            lambda _, item: sizes.append(getattr(item, "size", 0))
        )
    assert sum(sizes) == sum(v.numpy().size for v in model.optimizer.variables)


def test_a_checkpoint_does_not_bring_back_the_numbers_of_the_rule(tmp_path):
    model = make_model()
    train(model)
    saved = tf.train.Checkpoint(optimizer=model.optimizer).save(
        str(tmp_path / "checkpoint")
    )
    optimizer = mp.wrap(keras.optimizers.Adam(), growth_interval=7)
    tf.train.Checkpoint(optimizer=optimizer).restore(saved)
    assert optimizer.growth_interval == 7
    assert float(optimizer.loss_scale) == float(model.optimizer.loss_scale)


def test_a_live_number_is_saved_with_the_model(tmp_path):
    model = make_model()
    train(model)
    model.optimizer.growth_interval = 11
    assert by_keras_file(model, tmp_path).optimizer.growth_interval == 11


def test_the_file_of_another_optimizer_is_not_loaded_in_silence(tmp_path):
    model = make_mlp("adam", policy="float32")
    train(model)
    model.save_weights(tmp_path / "model.weights.h5")
    new = make_model()
    new.optimizer.build(new.trainable_variables)
    with pytest.warns() as caught:
        new.load_weights(tmp_path / "model.weights.h5")
    assert any("has no loss-scale state" in str(w.message) for w in caught)
    assert float(new.optimizer.loss_scale) == 256.0


def test_set_weights_refuses_what_does_not_fit():
    optimizer = make_optimizer()
    optimizer.build([keras.Variable([1.0])])
    weights = [v.numpy() for v in optimizer.variables]
    with pytest.raises(ValueError, match="must have one array for each"):
        optimizer.set_weights(weights[:-1])
    with pytest.raises(ValueError, match="must have the shape"):
        optimizer.set_weights([np.zeros(3), *weights[1:]])


def test_an_optimizer_can_be_copied():
    optimizer = make_optimizer()
    optimizer.loss_scale = 4.0
    twin = copy.deepcopy(optimizer)
    assert float(twin.loss_scale) == 4.0
    twin.loss_scale = 2.0
    assert float(optimizer.loss_scale) == 4.0
