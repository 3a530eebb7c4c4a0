"""Tests for `tf_mixprec.callbacks.terminate_on_nan`."""

import itertools
import logging

import keras
import numpy as np
import pytest
from models import make_mlp
from models import regression_data

import tf_mixprec as mp

BATCHES = 4
X, Y = regression_data(BATCHES * 8)


def spoil(array, *batches):
    """Returns a copy with nan in some batches."""
    array = array.copy()
    for batch in batches:
        array[batch * 8] = np.nan
    return array


def nan_where_the_target_is(y, prediction):
    """Returns a loss that is nan where the gradient is finite."""
    bad = keras.ops.isnan(y)
    loss = keras.ops.square(prediction - keras.ops.where(bad, 0.0, y))
    return loss + keras.ops.stop_gradient(keras.ops.where(bad, np.nan, 0.0))


def compiled(loss=nan_where_the_target_is, **options):
    model = make_mlp(policy="float32")
    options = {"jit_compile": False, **options}
    mp.compile(model, "sgd", loss, safe_skip=True, **options)
    return model


def of_a_step(loss=nan_where_the_target_is, **options):
    step = mp.TrainStep(
        make_mlp(policy="float32"),
        "sgd",
        loss,
        jit_compile=False,
        **options,
    )
    return step.model


def fit(model, x=X, y=Y, epochs=2, callback=None, **options):
    return model.fit(
        x,
        y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        callbacks=[callback or mp.callbacks.TerminateOnNaN()],
        verbose=0,
        **options,
    ).history["loss"]


@pytest.mark.parametrize(
    ("check_every", "batches"), [(1, 2), (2, 2), (3, 3), (50, 4)]
)
def test_it_stops_where_it_looks(check_every, batches, capsys):
    """The steps were made: the weights may well be good, the loss is not."""
    model = compiled(run_eagerly=True)
    losses = fit(
        model,
        y=spoil(Y, 1),
        callback=mp.callbacks.TerminateOnNaN(check_every=check_every),
    )
    assert len(losses) == 1
    assert int(model.optimizer.iterations) == batches
    assert int(model.optimizer.skipped_steps) == 0
    assert capsys.readouterr().out == (
        f"Batch {batches - 1}: Invalid loss, terminating training\n"
    )


@pytest.mark.parametrize(
    "make_model", [compiled, pytest.param(of_a_step, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        # After which the model itself has the loss of that.
        {"validation_data": (X, Y)},
    ],
    ids=["alone", "validated"],
)
def test_the_last_batch_is_looked_at(make_model, options):
    losses = fit(make_model(), y=spoil(Y, BATCHES - 1), **options)
    assert len(losses) == 1
    assert np.isnan(losses[0])


def test_an_infinite_loss_stops_too():
    def loss(y, prediction):
        return nan_where_the_target_is(y, prediction) + np.inf

    assert len(fit(compiled(loss, run_eagerly=True))) == 1


MODELS = {
    "eager": lambda: compiled(run_eagerly=True),
    "graph": compiled,
    "loop": lambda: compiled(steps_per_execution=2),
    "step": of_a_step,
    "accumulating": lambda: of_a_step(accumulation_steps=2),
}


CALLBACKS = {
    "ours": lambda: mp.callbacks.TerminateOnNaN(check_every=1),
    "Keras's": keras.callbacks.TerminateOnNaN,
}
QUICK = [
    ("eager", "Keras's"),
    ("graph", "ours"),
    ("accumulating", "ours"),
]


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(MODELS, CALLBACKS)
    ],
)
def test_skipped_steps_do_not_stop(name, callback):
    """Not even where they come first, and there is no loss yet."""
    model = MODELS[name]()
    losses = fit(model, x=spoil(X, 0, 1, 3), callback=CALLBACKS[callback]())
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    good = int(model.optimizer.iterations)
    # One half of a batch in two is good.
    assert good == (8 if name == "accumulating" else 2)


@pytest.mark.parametrize(
    "make_model", [pytest.param(compiled, marks=pytest.mark.slow), of_a_step]
)
def test_epochs_of_skipped_steps_do_not_stop(make_model):
    model = make_model()
    losses = fit(
        model,
        x=np.full_like(X, np.nan),
        callback=mp.callbacks.TerminateOnNaN(check_every=1),
        validation_data=(X, Y),
    )
    assert len(losses) == 2
    assert np.isnan(losses).all()
    assert int(model.optimizer.skipped_steps) == 2 * BATCHES


class Loss:
    """What waits for the device where it is made a number."""

    def __init__(self):
        self.reads = 0

    def __float__(self):
        self.reads += 1
        return 1.0


def test_no_batch_waits_but_those_it_looks_at():
    callback = mp.callbacks.TerminateOnNaN(check_every=4)
    callback.set_model(compiled())
    callback.on_train_begin()
    loss = Loss()
    for _ in range(2):
        callback.on_epoch_begin(0)
        for batch in range(10):
            callback.on_train_batch_end(batch, {"loss": loss})
        callback.on_epoch_end(0, {})
    assert loss.reads == 2 * (10 // 4 + 1)


def test_it_counts_the_batches_of_one_execution():
    callback = mp.callbacks.TerminateOnNaN(check_every=4)
    callback.set_model(compiled())
    loss = Loss()
    for batch in (2, 5, 8, 11):  # three each
        callback.on_train_batch_end(batch, {"loss": loss})
    assert loss.reads == 2


def test_without_a_loss_there_is_nothing_to_see():
    callback = mp.callbacks.TerminateOnNaN(check_every=1)
    model = compiled()
    model.stop_training = False
    callback.set_model(model)
    callback.on_train_batch_end(0, {"mae": np.nan})
    callback.on_train_batch_end(1)
    callback.on_epoch_end(0)
    assert model.stop_training is False


def test_the_message_goes_where_keras_logs(capsys, caplog):
    keras.config.disable_interactive_logging()
    try:
        with caplog.at_level(logging.INFO):
            fit(compiled(run_eagerly=True), y=spoil(Y, 0))
    finally:
        keras.config.enable_interactive_logging()
    assert "Batch 3: Invalid loss" in caplog.text
    assert not capsys.readouterr().out


def compiled_anew():
    model = compiled()
    model.compile("sgd", "mse")
    return model


def skipping_no_more():
    model = compiled()
    model.compile(mp.wrap("sgd", skip_nonfinite=False), "mse")
    return model


@pytest.mark.parametrize(
    "make_model",
    [
        lambda: make_mlp("sgd", "float32"),
        lambda: make_mlp(mp.wrap("sgd")),
        compiled_anew,
        skipping_no_more,
    ],
    ids=["Keras's", "wrapped", "compiled_anew", "skipping_no_more"],
)
def test_other_models_are_refused(make_model):
    with pytest.raises(ValueError, match="leave no trace.*safe_skip=True"):
        fit(make_model())


@pytest.mark.parametrize("value", ["1", 1.0, True, None])
def test_check_every_is_an_int(value):
    with pytest.raises(TypeError, match="`check_every` must be an int"):
        mp.callbacks.TerminateOnNaN(check_every=value)


def test_check_every_is_at_least_1():
    with pytest.raises(ValueError, match="`check_every` must be at least 1"):
        mp.callbacks.TerminateOnNaN(check_every=0)
