"""Shows the loss scale in the epoch logs."""

from typing import Any

import keras

from tf_mixprec.optimizers import LossScaleOptimizer


class LossScaleLogger(keras.callbacks.Callback):
    """Adds `loss_scale` and `skipped_steps` to the logs of each epoch.

    So `History`, the progress bar, TensorBoard and CSV files show them. The
    device is asked once an epoch, not once a batch. Callbacks see the logs in
    the order in which `fit` is given them: put this one before a `CSVLogger`.

    Both are values at the end of the epoch: `loss_scale` is dimensionless, and
    `skipped_steps` counts all steps skipped since the optimizer was made.

    Args:
        optimizer: The `mp.LossScaleOptimizer` to ask. Defaults to the model's;
            a model that trains with several needs to be told.

    Raises:
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
        self._optimizer = optimizer

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._asked()
        if not isinstance(optimizer, LossScaleOptimizer):
            raise ValueError(
                "`LossScaleLogger` must be used with an "
                "`mp.LossScaleOptimizer`, because it logs its loss scale and "
                "its skipped steps. Compile the model with "
                "`optimizer=mp.wrap(optimizer)`; under `mixed_float16` Keras "
                "otherwise wraps it in a class of its own. Received: "
                f"optimizer={optimizer!r}"
            )

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

    def _asked(self) -> Any:
        return self._optimizer or self.model.optimizer
