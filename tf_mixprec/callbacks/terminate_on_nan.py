"""Stops a run whose loss is nan, and not one that has skipped a step."""

import logging
import math
import sys
from typing import Any

import keras

from tf_mixprec.callbacks.batches import EveryBatches
from tf_mixprec.training.safe_skip import skips_safely


class TerminateOnNaN(keras.callbacks.Callback):
    """Stops training when the loss of a step that was made is inf or nan.

    `keras.callbacks.TerminateOnNaN` for 16 bits. A skipped step never stops the
    run: it is no part of the running loss. Neither does an epoch of skipped
    steps only, whose loss is logged as nan; that is what
    `mp.callbacks.OverflowGuard` is for.

    The running loss stays nan to the end of the epoch, so it is enough to look
    at it now and then. Nothing else is asked of the device.

    Args:
        check_every: Int, in batches: how often to look, besides at the end of
            each epoch. Defaults to 50.

    Raises:
        TypeError: If `check_every` is no int.
        ValueError: If it is below 1. At the start of training, if skipped steps
            of the model count in its loss.

    Example:

    ```python
    mp.compile(model, "adam", "mse", safe_skip=True)  # or `mp.TrainStep`
    model.fit(x, y, callbacks=[mp.callbacks.TerminateOnNaN()])
    ```
    """

    def __init__(self, check_every: int = 50):
        super().__init__()
        self._batches = EveryBatches(check_every)
        self._forget()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not skips_safely(self.model):
            raise ValueError(
                "`TerminateOnNaN` must be used with a model whose skipped "
                "steps leave no trace, because elsewhere the loss is nan after "
                "a step that was skipped. Compile it with `mp.compile(..., "
                "safe_skip=True)`, make a `mp.TrainStep` of it, or use "
                "`keras.callbacks.TerminateOnNaN`. Received: the model "
                f"{self.model.name!r} with the optimizer "
                f"{self.model.optimizer!r}"
            )

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batches.restart()
        self._forget()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # Kept as it is: to make a number of a tensor is to wait for it.
        self._batch, self._loss = batch, (logs or {}).get("loss")
        if self._batches.have_passed(batch):
            self._check()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # Of the last batch and not of the epoch, where nan may mean that every
        # step was skipped; and not of the model, which has been evaluated.
        self._check()

    def _check(self) -> None:
        if self._loss is None or math.isfinite(float(self._loss)):
            return
        _tell(f"Batch {self._batch}: Invalid loss, terminating training")
        self.model.stop_training = True
        self._forget()

    def _forget(self) -> None:
        self._batch, self._loss = -1, None


def _tell(message: str) -> None:
    """Says it where Keras would."""
    if keras.config.is_interactive_logging_enabled():
        sys.stdout.write(f"{message}\n")
        sys.stdout.flush()
    else:
        logging.getLogger(__name__).warning(message)
