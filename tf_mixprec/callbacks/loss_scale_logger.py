"""Shows the loss scale, and how it moves, in the epoch logs."""

from typing import Any

import keras

from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.asked_optimizer import check_type
from tf_mixprec.optimizers import LossScaleOptimizer


class LossScaleLogger(keras.callbacks.Callback):
    """Adds the loss scale, its moves and skipped steps to the epoch logs.

    ```text
    loss_scale             at the end of the epoch, dimensionless
    loss_scale_min         the smallest of the epoch, start and end included
    loss_scale_max         the largest
    loss_scale_growths     how often it has grown, and
    loss_scale_backoffs    backed off, since a first logger was used with it
    skipped_steps          steps skipped since the optimizer was made
    ```

    So `History`, the progress bar, TensorBoard and CSV files show them. The
    device is asked once an epoch, not once a batch. Callbacks see the logs in
    the order in which `fit` is given them: put this one before a `CSVLogger`.

    Moves are counted on the device, which a train function that was traced
    without does not do: it is traced anew, once. What a file or a program sets
    the scale to is no move, and neither is a backoff that the floor stops. The
    counts are in no file; those of a resumed run start at 0. Other backends
    than TensorFlow have `loss_scale` and `skipped_steps` only.

    Args:
        optimizer: The `mp.LossScaleOptimizer` to ask. Defaults to the model's;
            a model that trains with several needs to be told.

    Raises:
        TypeError: If `optimizer` is something else.
        ValueError: At the start of training, if the optimizer is not a
            `mp.LossScaleOptimizer`.

    Example:

    ```python
    model.compile(optimizer=mp.wrap("adam"), loss="mse")
    model.fit(x, y, callbacks=[mp.callbacks.LossScaleLogger()])
    ```
    """

    def __init__(self, optimizer: LossScaleOptimizer | None = None):
        super().__init__()
        check_type(optimizer, "its scale and steps are logged")
        self._optimizer = optimizer

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._asked()
        check_is_wrapped(
            "LossScaleLogger",
            optimizer,
            "it logs its loss scale and its skipped steps",
        )
        if keras.backend.backend() != "tensorflow":
            return
        with self.model.distribute_strategy.scope():
            is_new = optimizer.notes.follow_scale()
        if is_new:
            self.model.make_train_function(force=True)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        optimizer = self._asked()
        if optimizer.notes.moves is not None:
            optimizer.notes.moves.restart_bounds(optimizer.loss_scale)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None:
            return
        optimizer = self._asked()
        # Not `float(variable)`, which a mirrored variable does not have.
        to_numpy = keras.ops.convert_to_numpy
        logs["loss_scale"] = float(to_numpy(optimizer.loss_scale))
        logs["skipped_steps"] = int(to_numpy(optimizer.skipped_steps))
        if optimizer.notes.moves is None:
            return
        moves = optimizer.notes.moves.read()
        logs["loss_scale_min"] = moves.smallest
        logs["loss_scale_max"] = moves.largest
        logs["loss_scale_growths"] = moves.growths
        logs["loss_scale_backoffs"] = moves.backoffs

    def _asked(self) -> Any:
        return self._optimizer or self.model.optimizer
