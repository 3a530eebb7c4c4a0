"""`fit`: epochs of a training step, with what Keras has for them."""

from typing import Any

import keras

from tf_mixprec.training import misuse
from tf_mixprec.training.train_step import TrainStep
from tf_mixprec.training.train_step import as_arguments

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def fit(
    step: TrainStep,
    data: Any,
    *,
    epochs: int = 1,
    validation_data: Any = None,
    callbacks: Any = None,
    steps_per_epoch: int | None = None,
    initial_epoch: int = 0,
    verbose: str | int = "auto",
    **options: Any,
) -> keras.callbacks.History:
    """Trains for some epochs, as `model.fit`, with the step given.

    It is Keras's own loop: the same data, progress bar and callbacks. Beside
    loss and metrics the logs of an epoch have `grad_norm`, the mean over its
    good steps; `skipped`, the number of the others; `loss_scale` at its end;
    and the means of what `compute_loss` returned.

    Args:
        step: The step.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays, or what Keras takes
            alone: a `tf.data.Dataset`, a `keras.utils.PyDataset`, a generator.
        epochs: Int: the epoch to stop at. Defaults to 1.
        validation_data: As `data`: what `val_` logs are of. Defaults to none.
        callbacks: A callback of Keras or of `mp.callbacks`, or a list of them.
            Defaults to none.
        steps_per_epoch: Int, in steps. Defaults to all of the data.
        initial_epoch: Int: the epoch to start at. Defaults to 0.
        verbose: As in `model.fit`.
        **options: Others of `model.fit`, such as `batch_size` and `shuffle`
            for arrays, `class_weight`, or `validation_freq`.

    Returns:
        The `History` of the logs of all epochs.

    Raises:
        TypeError: If `step` is no `mp.TrainStep`.
        RuntimeError: If its model has been compiled anew.
        ValueError: If its loss scale is shared, since nobody would move it.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> step = mp.TrainStep(model, "sgd", "mse")
    >>> data = (np.ones((8, 4)), np.ones((8, 1)))
    >>> history = mp.fit(step, data, epochs=2, batch_size=4, verbose=0)
    >>> sorted(history.history)
    ['grad_norm', 'loss', 'loss_scale', 'skipped']
    """
    if not isinstance(step, TrainStep):
        raise TypeError(
            "`step` must be a `mp.TrainStep`, because it makes the steps; to "
            "train a compiled model call `model.fit`. Received: "
            f"step={step!r}"
        )
    misuse.check_is_current(step)
    misuse.check_scale_is_not_shared(step.optimizer)
    if isinstance(data, tf.data.Dataset):
        options.setdefault("shuffle", False)  # Keras warns that it does not
    return step.model.fit(
        **as_arguments(data),
        epochs=epochs,
        validation_data=validation_data,
        callbacks=[_EpochLogs(step), *keras.tree.flatten(callbacks or [])],
        steps_per_epoch=steps_per_epoch,
        initial_epoch=initial_epoch,
        verbose=verbose,
        **options,
    )


class _EpochLogs(keras.callbacks.Callback):
    """Adds what the step knows to the logs of each epoch."""

    def __init__(self, step: TrainStep):
        super().__init__()
        self._step = step

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Starts the means of the epoch."""
        self._step.reset_metrics()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Adds them."""
        if logs is not None:
            # Loss and metrics are there, and by now those of validation too.
            logs.update({**self._step.epoch_logs(), **logs})
