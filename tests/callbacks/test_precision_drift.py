"""How far training is from float32 is seen while it goes on."""

import keras
import numpy as np
import pytest

import tf_mixprec as mp

BATCH = 8


def make(policy, *extra):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh", name="hidden"),
            *extra,
            keras.layers.Dense(1, dtype="float32", name="head"),
        ]
    )


def data(batches=6):
    x = np.random.default_rng(0).normal(size=(batches * BATCH, 4))
    return x.astype("float32"), x.sum(axis=1, keepdims=True).astype("float32")


@pytest.mark.parametrize("how", ["fit", "step"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_drift_is_logged(policy, how):
    drift = mp.callbacks.PrecisionDrift(every=2, max_overhead=None)
    options = {"verbose": 0, "epochs": 2, "batch_size": BATCH}
    options["callbacks"] = [drift]
    model, (x, y) = make(policy), data()
    if how == "step":
        step = mp.TrainStep(model, "sgd", "mse")
        history = mp.fit(step, (x, y), **options).history
    else:
        mp.compile(model, "sgd", "mse")
        history = model.fit(x, y, **options).history
    assert [each.step for each in drift.records] == [2, 4, 6, 8, 10, 12]
    assert len(history["loss_drift"]) == 2
    changes = [abs(e.comparison.loss_change) for e in drift.records[3:]]
    assert history["loss_drift"][1] == pytest.approx(np.mean(changes))
    cosines = [each.least_cosine for each in drift.records[:3]]
    assert history["gradient_cosine"][0] == min(cosines) > 0.99
    assert 0 < max(changes) < 0.01


def test_a_drift_that_stays_is_a_warning():
    lossy, back = (
        keras.layers.Rescaling(1.0, offset=offset, dtype="bfloat16")
        for offset in (300.0, -300.0)
    )
    model = make("mixed_bfloat16", lossy, back)
    mp.compile(model, keras.optimizers.SGD(1e-3), "mse")
    drift = mp.callbacks.PrecisionDrift(every=1, patience=2, max_overhead=None)
    x, y = data()
    with pytest.warns(mp.callbacks.NumericsWarning, match="2 comparisons in a"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[drift])


def test_an_epoch_without_a_comparison_is_nan():
    model = make("mixed_float16")
    mp.compile(model, "sgd", "mse")
    drift = mp.callbacks.PrecisionDrift(every=100)
    x, y = data()
    history = model.fit(x, y, verbose=0, callbacks=[drift]).history
    assert np.isnan(history["loss_drift"]).all()
    assert drift.records == ()


def test_the_weights_are_those_without_it():
    weights = []
    drift = mp.callbacks.PrecisionDrift(every=1, max_overhead=None)
    for callback in (drift, keras.callbacks.Callback()):
        keras.utils.clear_session()
        model = make("mixed_float16", keras.layers.Dropout(0.5, seed=1))
        mp.compile(model, "adam", "mse")
        x, y = data()
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
        weights.append(model.get_weights())
    np.testing.assert_equal(*weights)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="at least 1"):
        mp.callbacks.PrecisionDrift(patience=0)
