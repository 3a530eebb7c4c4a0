"""Shows the loss scale in the epoch logs."""

from typing import Any

import keras


class LossScaleLogger(keras.callbacks.Callback):
    """Adds `loss_scale` and `skipped_steps` to the logs of each epoch.

    So `History`, the progress bar, TensorBoard and CSV files show them. The
    device is asked once an epoch, not once a batch. Callbacks see the logs in
    the order in which `fit` is given them: put this one before a `CSVLogger`.

    Both are values at the end of the epoch: `loss_scale` is dimensionless, and
    `skipped_steps` counts all steps skipped since the optimizer was made.

    Raises:
        ValueError: At the start of training, if the model's optimizer does not
            scale the loss.

    Example:

    ```python
    model.compile(optimizer=mp.wrap("adam"), loss="mse")
    model.fit(x, y, callbacks=[mp.callbacks.LossScaleLogger()])
    ```
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        if not hasattr(optimizer, "skipped_steps"):
            raise ValueError(
                "`LossScaleLogger` must be used with an optimizer that scales "
                "the loss, because it shows the loss scale. Compile the model "
                "with `optimizer=mp.wrap(optimizer)`. Received: "
                f"model.optimizer={optimizer!r}"
            )

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None:
            return
        optimizer = self.model.optimizer
        logs["loss_scale"] = float(optimizer.loss_scale)
        logs["skipped_steps"] = int(optimizer.skipped_steps)
