"""How `fit` and `evaluate` of a model use its training step.

Some methods of the model are set on the instance: Keras's loop, data and
callbacks stay as they are, and what it calls for a batch is the step.
"""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import set_method
from tf_mixprec.training.instance_methods import unset_method
from tf_mixprec.training.snapshot import Snapshot

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class TrainWithStep:
    """Makes the model of a step train with it, until it is compiled anew.

    Args:
        step: A `TrainStep`.
    """

    def __init__(self, step: Any):
        self._step = step
        self._model = step.model
        set_method(step.model, "make_train_function", self._make)
        set_method(step.model, "make_test_function", self._make_test)
        set_method(step.model, keras_internals.SYMBOLIC_BUILD, self._build)
        step.model.train_function = None

    @property
    def step(self) -> Any:
        """The `TrainStep`."""
        return self._step

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make_train_function(force: bool = False) -> Any:
            if not self._step.is_current:
                return original(force)
            if force:
                self._step.trace_anew()
            self._model.train_function = self._train
            return self._train

        return make_train_function

    def _make_test(self, original: Callable[..., Any]) -> Callable[..., Any]:
        replicas = self._step.replicas

        def make_test_function(force: bool = False) -> Any:
            if not self._step.is_current or not replicas.has_other_workers:
                return original(force)
            if self._model.test_function is None or force:
                # Keras takes the mean of what workers return along an axis
                # that scalars do not have.
                function = replicas.mean_of(self._model.test_step)
                self._model.test_function = lambda iterator: function(
                    _unpacked(next(iterator))
                )
            return self._model.test_function

        return make_test_function

    def _train(self, iterator: Any) -> dict[str, Tensor]:
        return self._step.results(_unpacked(next(iterator)))

    def _build(self, original: Callable[..., None]) -> Callable[..., None]:
        def build_instead(iterator: Any = None, data_batch: Any = None) -> None:
            if not self._step.is_current:
                original(iterator=iterator, data_batch=data_batch)
            elif keras_internals.builds_symbolically(self._model):
                if iterator is not None:
                    data_batch = keras_internals.first_batch(iterator)
                self._step.build(_unpacked(data_batch))

        return build_instead


def step_behind(train_function: Any) -> Any:
    """Returns the `TrainStep` that a train function makes steps of, or `None`.

    Args:
        train_function: Of a model. One around another has that as
            `_tf_mixprec_inner`.
    """
    while hasattr(train_function, "_tf_mixprec_inner"):
        train_function = train_function._tf_mixprec_inner
    owner = getattr(train_function, "__self__", None)
    return owner.step if isinstance(owner, TrainWithStep) else None


def make_train_without(model: Any) -> None:
    """Gives a model back what Keras trains and tests it with."""
    for name in (
        "make_train_function",
        "make_test_function",
        keras_internals.SYMBOLIC_BUILD,
        "test_step",
        "reset_metrics",
    ):
        unset_method(model, name)


class TestWithLosses:
    """Makes a model evaluate losses that users compute.

    Args:
        step: A `TrainStep` whose model it is.
        losses_of: From a replica's batch to losses, which it counts, and
            scalars beside them.
    """

    def __init__(
        self,
        step: Any,
        losses_of: Callable[..., tuple[dict[str, Tensor], dict[str, Tensor]]],
    ):
        self._step = step
        self._losses_of = losses_of
        self._means: dict[str, Any] = {}
        set_method(step.model, "test_step", self._or_test)
        set_method(step.model, "reset_metrics", self._and_reset)

    def make_means(self, names: Iterable[str]) -> None:
        """Makes the means of the scalars, once.

        Args:
            names: Of the scalars; in the scope of a strategy, before it
                evaluates.
        """
        for name in names:
            if name not in self._means:
                self._means[name] = keras.metrics.Mean(name)

    def _or_test(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def test_step(data: Any) -> Any:
            if not self._step.is_current:
                return original(data)
            return self._test(data)

        return test_step

    def _and_reset(self, original: Callable[[], None]) -> Callable[[], None]:
        def reset_metrics() -> None:
            original()
            for mean in self._means.values():
                mean.reset_state()

        return reset_metrics

    def _test(self, data: Any) -> dict[str, Tensor]:
        # A loss may call the model as if to train it.
        snapshot = Snapshot(self._step.model)
        _, scalars = self._losses_of(_unpacked(data), training=False)
        snapshot.put_statistics_back()
        with tf.init_scope():  # no step need have been made
            self.make_means(scalars)
        for name, value in scalars.items():
            self._means[name].update_state(value)
        averages = {name: self._means[name].result() for name in scalars}
        return {**self._step.model.get_metrics_result(), **averages}


def _unpacked(data: Any) -> tuple[Any, Any, Any]:
    data = keras_internals.without_optionals(data)
    return tuple(keras.utils.unpack_x_y_sample_weight(data))
