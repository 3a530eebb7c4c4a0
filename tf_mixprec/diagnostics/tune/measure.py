"""What a budget is a share of: the loss, or a metric, in some precision."""

import inspect
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_mixprec.conversion.keras_internals import forget_traces
from tf_mixprec.diagnostics.data import size_of
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.untouched import state_of
from tf_mixprec.diagnostics.untouched import untouched
from tf_mixprec.training import keras_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_TRACED = ("train_function", "test_function", "predict_function")
# How names of Keras's metrics begin or end, of which more is better.
_MORE_IS_BETTER = (
    "Accuracy",
    "AUC",
    "CosineSimilarity",
    "F1Score",
    "FBetaScore",
    "IoU",
    "MeanIoU",
    "Negatives",
    "Positives",
    "Precision",
    "PrecisionAtRecall",
    "R2Score",
    "Recall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
)
_MORE_IS_WORSE = (
    "Crossentropy",
    "Error",
    "FalseNegatives",
    "FalsePositives",
    "Hinge",
    "KLDivergence",
    "Poisson",
)
_SHORT_NAMES = ("acc", "accuracy", "ce", "crossentropy")


class Measure:
    """A number that a model has in each precision.

    Args:
        subject: The model and its loss.
        metric: `None` for the loss; a `keras.metrics.Metric` or its name; or a
            function from the model to a float.
        mode: `"min"` if less is better, `"max"` if more is, `"auto"` for what
            is known of the metric; less, of a function.
        batches: What it is computed on.
        jit_compile: Whether XLA compiles it.

    Attributes:
        name: What is measured.
        model: Of what.

    Raises:
        TypeError: If `metric` is none of these.
        ValueError: If `mode` is not known.
    """

    def __init__(
        self,
        subject: Subject,
        metric: Any,
        mode: str,
        batches: Sequence[Batch],
        *,
        jit_compile: bool,
    ):
        self._subject = subject
        self.model = subject.model
        self._batches = batches
        self._jit_compile = jit_compile
        self.name, self._value = "loss", self._loss
        metric = _resolved(metric, batches[0], subject.model)
        if isinstance(metric, keras.metrics.Metric):
            self.name = metric.name
            self._value = lambda: self._of_metric(metric)
        elif metric is not None:
            self.name = getattr(metric, "__name__", type(metric).__name__)
            self._value = lambda: self._of_function(metric)
        self._is_better_up = _is_better_up(metric, mode)

    def value(self, policy_or_rules: Any) -> float:
        """Returns the number of the model in a precision.

        Args:
            policy_or_rules: As for `in_precision`.
        """
        model = self.model
        with (
            untouched(state_of(model)),
            in_precision(model, policy_or_rules),
            np.errstate(over="ignore"),  # constants of layers, in 16 bits
        ):
            return float(self._value())

    def increase(self, value: float, reference: float) -> float:
        """Returns how much worse a value is, as a share of the reference.

        Args:
            value: The value; inf or nan are infinitely worse.
            reference: The value in float32.
        """
        worse = reference - value if self._is_better_up else value - reference
        if not np.isfinite(value):
            return float("inf")
        if worse == 0:
            return 0.0
        with np.errstate(divide="ignore"):
            return float(np.float64(worse) / abs(reference))

    def _loss(self) -> float:
        def loss_of(batch: Batch) -> Any:
            return self._subject.loss(batch, None, training=False)

        run = traced(loss_of, jit_compile=self._jit_compile)
        losses = [float(run(batch)) for batch in self._batches]
        sizes = [size_of(batch) for batch in self._batches]
        return float(np.average(losses, weights=sizes))

    def _of_metric(self, metric: keras.metrics.Metric) -> float:
        model = self.model

        def predictions_of(x: Any) -> Any:
            return keras_internals.predictions(model, x, training=False)

        run = traced(predictions_of, jit_compile=self._jit_compile)
        metric.reset_state()
        for x, y, sample_weight in self._batches:
            metric.update_state(y, run(x), sample_weight)
        result = float(metric.result())
        metric.reset_state()
        return result

    def _of_function(self, function: Callable[[Any], float]) -> float:
        model = self.model
        before = {name: getattr(model, name) for name in _TRACED}
        forget_traces(model)
        try:
            return float(function(model))
        finally:
            for name, function_before in before.items():
                setattr(model, name, function_before)


def _resolved(metric: Any, batch: Batch, model: Any) -> Any:
    if metric is None:
        return None
    if isinstance(metric, str) or _is_of_keras(metric):
        shape = _output_shape(metric, batch, model)
        if isinstance(metric, str):
            if metric.lower() in _SHORT_NAMES:
                metric = _long_name(metric.lower(), batch[1], shape)
            metric = keras.metrics.get(metric)
        return metric() if inspect.isclass(metric) else metric
    if not callable(metric):
        raise TypeError(
            "`metric` must be None for the loss, a `keras.metrics.Metric`, its "
            "name, or a function from the model to a float, because it is "
            f"computed in each precision. Received: metric={metric!r}"
        )
    return metric


def _is_of_keras(metric: Any) -> bool:
    """Returns whether something is a metric of Keras, or a class of them."""
    if inspect.isclass(metric):
        return issubclass(metric, keras.metrics.Metric)
    return isinstance(metric, keras.metrics.Metric)


def _output_shape(metric: Any, batch: Batch, model: Any) -> tuple[Any, ...]:
    """Returns the shape of the only output; by a trace, which runs nothing."""
    x, y, _ = batch

    def predictions_of(x: Any) -> Any:
        return keras_internals.predictions(model, x, training=False)

    graph = tf.function(predictions_of, autograph=False)
    outputs = graph.get_concrete_function(x).structured_outputs
    shapes = keras.tree.map_structure(lambda each: tuple(each.shape), outputs)
    has_targets = y is not None and not keras.tree.is_nested(y)
    if keras.tree.is_nested(outputs) or (
        isinstance(metric, str) and not has_targets
    ):
        raise ValueError(
            "`metric` must be a function from the model to a float here, "
            "because a metric of Keras compares one output with its targets; "
            "give one, such as `lambda model: model.evaluate(x, y, "
            'return_dict=True)["head_accuracy"]`, and its `mode`. Received: '
            f"metric={metric!r}, for outputs of shape {shapes}"
            f"{'' if has_targets else ' without a target of their own'}"
        )
    return shapes


def _long_name(name: str, y: Any, shape: tuple[Any, ...]) -> str:
    """Returns the metric that `model.compile` takes a short name for."""
    kind = "sparse_categorical"
    if shape[-1] == 1:
        kind = "binary"
    elif len(y.shape) == len(shape) and y.shape[-1] == shape[-1]:
        kind = "categorical"
    word = "accuracy" if name in ("acc", "accuracy") else "crossentropy"
    return f"{kind}_{word}"


def _is_better_up(metric: Any, mode: str) -> bool:
    if mode not in ("auto", "min", "max"):
        raise ValueError(
            "`mode` must be 'auto', 'min' or 'max', because it says which "
            f"values of the metric are worse. Received: mode={mode!r}"
        )
    if mode != "auto":
        return mode == "max"
    if not isinstance(metric, keras.metrics.Metric):
        return False
    name = type(metric).__name__
    if isinstance(metric, keras.metrics.MeanMetricWrapper) and (
        name == "MeanMetricWrapper"
    ):
        name = metric.name.title().replace("_", "")
    if name.endswith(_MORE_IS_WORSE):
        return False
    if name.endswith(_MORE_IS_BETTER):
        return True
    raise ValueError(
        "`mode` must be 'min' or 'max' with this metric, because it is not "
        f"known whether more of it is better. Received: metric={metric!r}"
    )
