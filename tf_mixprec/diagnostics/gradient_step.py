"""Gradients of a model in one precision, and how they compare with others."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from tf_mixprec._typing import Tensor
from tf_mixprec.diagnostics.in_precision import in_precision
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tensor_statistics import is_zero
from tf_mixprec.diagnostics.traced import traced
from tf_mixprec.diagnostics.untouched import state_of
from tf_mixprec.diagnostics.untouched import untouched
from tf_mixprec.diagnostics.without_randomness import without_randomness

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientMatch:
    """How the gradient of a variable compares with that in float32.

    Args:
        variable: The path of the variable.
        nonzero: How many values of the float32 gradient are not zero.
        lost: How many of these are zero here.
        nonfinite: How many values are inf or nan here.
        cosine: The cosine between the two; nan where one is zero or not finite.
        norm_ratio: The norm here over that in float32.
    """

    variable: str
    nonzero: int
    lost: int
    nonfinite: int
    cosine: float
    norm_ratio: float


class GradientStep:
    """Gradients of all trainable variables, traced once for each shape.

    Without dropout, so that they can be compared.

    Args:
        subject: The model and its loss.
        policy: As for `in_precision`: the precision; `None` for that of the
            model.
        jit_compile: Whether XLA compiles it.
    """

    def __init__(self, subject: Subject, policy: Any, *, jit_compile: bool):
        self._subject = subject
        self._policy = policy
        self._gradients_function = traced(
            self._gradients, jit_compile=jit_compile
        )
        self._matches_function = traced(self._matches, jit_compile=jit_compile)

    def gradients(self, batch: Batch, scale: float) -> list[Tensor]:
        """Returns unscaled gradients in float32; zeros where there is none.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: The loss scale.
        """
        return self._run(self._gradients_function, batch, scale)

    def matches(
        self, batch: Batch, scale: float, references: list[Tensor]
    ) -> list[GradientMatch]:
        """Returns how gradients compare with others.

        Args:
            batch: `(x, y, sample_weight)`.
            scale: The loss scale.
            references: From `gradients`, in float32.
        """
        rows = self._run(self._matches_function, batch, scale, references)
        variables = self._subject.model.trainable_variables
        return [
            _match(variable.path, row)
            for variable, row in zip(variables, rows.numpy(), strict=True)
        ]

    def _run(
        self, function: Any, batch: Batch, scale: float, *more: Any
    ) -> Any:
        self._subject.build(batch)
        model = self._subject.model
        with (
            untouched(state_of(model)),
            in_precision(model, self._policy),
            without_randomness(model),
        ):
            return function(batch, tf.constant(scale, tf.float32), *more)

    def _gradients(self, batch: Batch, scale: Tensor) -> list[Tensor]:
        variables = self._subject.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._subject.loss(batch, None, training=True)
            scaled = loss * tf.cast(scale, loss.dtype)
        gradients = tape.gradient(scaled, variables)
        return [
            tf.zeros(variable.shape)
            if gradient is None
            else tf.cast(tf.convert_to_tensor(gradient), tf.float32) / scale
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    def _matches(
        self, batch: Batch, scale: Tensor, references: list[Tensor]
    ) -> Tensor:
        gradients = self._gradients(batch, scale)
        return tf.stack(
            [
                _compared(gradient, reference)
                for gradient, reference in zip(
                    gradients, references, strict=True
                )
            ]
        )


def _compared(gradient: Tensor, reference: Tensor) -> Tensor:
    nonzero = ~is_zero(reference)
    lost = nonzero & is_zero(gradient)
    is_bad = ~tf.math.is_finite(gradient)
    counts = [
        tf.reduce_sum(tf.cast(each, tf.float64))
        for each in (nonzero, lost, is_bad)
    ]
    a, b = (tf.cast(each, tf.float64) for each in (gradient, reference))
    return tf.stack(
        [
            *counts,
            tf.reduce_sum(a * b),
            tf.reduce_sum(a * a),
            tf.reduce_sum(b * b),
        ]
    )


def _match(path: str, row: np.ndarray) -> GradientMatch:
    nonzero, lost, nonfinite = (int(each) for each in row[:3])
    product, own, other = (float(each) for each in row[3:])
    norms = math.sqrt(own) * math.sqrt(other)
    return GradientMatch(
        variable=path,
        nonzero=nonzero,
        lost=lost,
        nonfinite=nonfinite,
        cosine=product / norms if norms > 0 else math.nan,
        norm_ratio=math.sqrt(own / other) if other > 0 else math.nan,
    )


def lost_fraction(matches: list[GradientMatch]) -> float:
    """Returns the share of nonzero gradients that are zero, of all variables.

    Args:
        matches: Of the variables.
    """
    nonzero = sum(each.nonzero for each in matches)
    return sum(each.lost for each in matches) / nonzero if nonzero else 0.0


def is_finite(matches: list[GradientMatch]) -> bool:
    """Returns whether no gradient has inf or nan.

    Args:
        matches: Of the variables.
    """
    return not any(each.nonfinite for each in matches)
