"""What one step of the optimizer changes, tried on the model and taken back."""

import dataclasses
from typing import Any

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tensor_statistics import is_zero
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.untouched import untouched
from tf_mixprec.diagnostics.update_statistics import statistics
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.finite import found_inf
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import MasterWeightOptimizer

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateOfVariable:
    """What a step changes in one variable.

    Args:
        variable: Its path.
        dtype: The dtype its values are kept in: that of the master, if there
            is one.
        elements: Elements with a gradient other than zero; shares are of these.
        median_ratio: The median of |change| / |value|; nan where all values
            are zero.
        dead: The share whose value is the same after the step.
        dead_bfloat16: The share whose change is less than half an ulp of the
            value in bfloat16: what would be lost without a master.
        dead_float16: The same in float16.
    """

    variable: str
    dtype: str
    elements: int
    median_ratio: float
    dead: float
    dead_bfloat16: float
    dead_float16: float


def updates_of(subject: Subject, batch: Batch) -> tuple[UpdateOfVariable, ...]:
    """Returns what a step changes; nothing if there is no optimizer.

    Model and optimizer are as before afterwards. Gradients with inf or nan
    make no step that could be judged, and then there is nothing to return.

    Args:
        subject: The model and its loss.
        batch: `(x, y, sample_weight)`.
    """
    optimizer, model = subject.optimizer, subject.model
    if optimizer is None or not model.trainable_variables:
        return ()
    subject.build(batch)
    if not optimizer.built:  # and it stays so: it is built by the first step
        optimizer = type(optimizer).from_config(optimizer.get_config())
        optimizer.build(model.trainable_variables)
    step = _Step(subject, optimizer)
    with untouched([*model.variables, *optimizer.variables]):
        table = traced(step.make)(batch).numpy()
    return tuple(
        _update(variable.path, dtype, row)
        for variable, dtype, row in zip(
            model.trainable_variables, step.dtypes, table, strict=True
        )
        if row[0]
    )


def rounds_stochastically(optimizer: Any) -> bool:
    """Returns whether 16-bit weights have no masters, and lose nothing so.

    Args:
        optimizer: One that is wrapped or not; `None` for none.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, MasterWeightOptimizer) and inner.storage is None


class _Step:
    """A step of the optimizer, and the values before and after it."""

    def __init__(self, subject: Subject, optimizer: Any):
        self._subject = subject
        self._optimizer = optimizer
        self._variables = subject.model.trainable_variables
        self.dtypes: list[str] = []

    def make(self, batch: Batch) -> Tensor:
        optimizer = self._optimizer
        with tf.GradientTape() as tape:
            loss = self._subject.loss(batch, None, training=True)
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._variables)
        values = [
            tf.zeros(variable.shape)
            if gradient is None
            else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(
                gradients, self._variables, strict=True
            )
        ]
        is_good = ~found_inf(values)
        has_gradient = [is_good & ~is_zero(each) for each in values]
        before = self._values()
        self.dtypes = [dtype_name(each) for each in before]
        optimizer.apply(gradients, self._variables)
        return tf.stack(
            [
                statistics(*each)
                for each in zip(
                    before, self._values(), has_gradient, strict=True
                )
            ]
        )

    def _values(self) -> list[Tensor]:
        """Returns the values that the optimizer updates."""
        inner = self._optimizer
        if isinstance(inner, LossScaleOptimizer):
            inner = inner.inner_optimizer
        has_masters = isinstance(inner, MasterWeightOptimizer)
        return [
            tf.identity(inner.master_of(each) if has_masters else each.value)
            for each in self._variables
        ]


def _update(path: str, dtype: str, row: np.ndarray) -> UpdateOfVariable:
    elements, dead, bfloat16, float16, median = (float(each) for each in row)
    return UpdateOfVariable(
        variable=path,
        dtype=dtype,
        elements=int(elements),
        median_ratio=median,
        dead=dead / elements,
        dead_bfloat16=bfloat16 / elements,
        dead_float16=float16 / elements,
    )
