"""Base of callbacks that make the last step of a run again, to look at it."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.callbacks.last_batch import LastBatch
from tf_mixprec.diagnostics.culprit import Culprit
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.diagnostics.records import StepRecord
from tf_mixprec.diagnostics.replay import with_the_same_numbers
from tf_mixprec.diagnostics.search import found_in_step
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.training.keras_loop import step_behind


class SecondLook(keras.callbacks.Callback):
    """Has the batch and the loss scale of the last step, and its model.

    A subclass makes its own steps in `_make_steps`, of `self._subject`. These
    are traced with the policies that layers have, and so are made anew when
    the train function is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = LastBatch(None)

    def _make_steps(self) -> None:
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._subject = Subject(
            step_behind(self.model.train_function) or self.model
        )
        self._last.stop()  # where a former `fit` has not come to its end
        self._last = LastBatch(self.model)
        self._last.start()
        self._make_current_steps()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._last.stop()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._last.functions != self._functions:
            self._make_current_steps()

    def _make_current_steps(self) -> None:
        self._functions = self._last.functions
        self._make_steps()

    def _scale_of_step(self) -> float:
        scale = self._last.loss_scale
        return self._subject.loss_scale if scale is None else scale

    def _culprit(
        self, probed: ProbedStep
    ) -> tuple[Culprit | None, Callable[[float], StepRecord]]:
        """Returns what made the last step bad, and a function that makes it.

        Args:
            probed: Makes steps.
        """
        batch, scale = self._last.batch, self._scale_of_step()
        run = functools.cache(functools.partial(probed, batch))
        return (
            with_the_same_numbers(
                probed, batch, lambda: found_in_step(run, batch, scale)
            ),
            run,
        )
