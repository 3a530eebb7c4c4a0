"""How often gradients are clipped, and how large they are."""

from typing import Any

import keras
import numpy as np

from tf_mixprec.callbacks.asked_optimizer import check_can_note
from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.asked_optimizer import check_type
from tf_mixprec.callbacks.batches import EveryBatches
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers.norm_record import CAPACITY


class ClipMonitor(keras.callbacks.Callback):
    """Adds the share of clipped steps, and quantiles of norms, to epoch logs.

    ```text
    clipped_share     steps whose gradients exceeded a bound, from 0 to 1
    grad_norm_p50     the median of the global norm of the gradients
    grad_norm_p99     99 % of the norms are below
    grad_norm_max     the largest
    ```

    The norms are of unscaled gradients before clipping, summed over replicas,
    without penalties that masters get from regularizers. Bounds are
    `global_clipnorm`, `clipnorm` and `clipvalue` of an optimizer in `mp.wrap`,
    and `clip_global_norm`, `clip_norm` and `clip_value` of a `mp.TrainStep`.
    Without one the norms say which to choose: 99 % of the steps are not clipped
    by a `global_clipnorm` of `grad_norm_p99`. Skipped steps are not counted; an
    epoch without others has nan.

    Each step writes its norm to the device, which is asked at the end of each
    epoch, and after 32,768 steps. A `mp.TrainStep`, and an update that is
    compiled and clips by the global norm, know it already; elsewhere it takes a
    pass over the gradients. The train function is traced anew, once, at the
    start of `fit`, and notes norms from then on.

    Args:
        optimizer: The `mp.LossScaleOptimizer` to ask. Defaults to the model's;
            a model that trains with several needs to be told.

    Raises:
        TypeError: If `optimizer` is something else.
        ValueError: At the start of training, if the optimizer is not a
            `mp.LossScaleOptimizer`, has several optimizers or
            `gradient_accumulation_steps` in it, or if Keras does not run on
            TensorFlow.

    Example:

    ```python
    optimizer = mp.wrap(keras.optimizers.Adam(global_clipnorm=1.0))
    model.compile(optimizer, loss="mse")
    model.fit(x, y, callbacks=[mp.callbacks.ClipMonitor()])
    ```
    """

    def __init__(self, optimizer: LossScaleOptimizer | None = None):
        super().__init__()
        check_type(optimizer, "its steps note the norms")
        self._optimizer = optimizer
        # Half of what there is room for: batches of one execution come at once.
        self._batches = EveryBatches(CAPACITY // 2)
        self._forget()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._asked()
        check_is_wrapped("ClipMonitor", optimizer, "its steps note the norms")
        check_can_note("ClipMonitor", optimizer)
        with self.model.distribute_strategy.scope():
            is_new = optimizer.notes.record_norms()
        if is_new:
            self.model.make_train_function(force=True)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batches.restart()
        self._forget()
        self._asked().notes.norms.reset()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._batches.have_passed(batch):
            self._collect()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._collect()
        if logs is None:
            return
        if not self._steps:
            logs.update(dict.fromkeys(_NAMES, float("nan")))
            return
        norms = np.concatenate(self._norms)
        median, highest = np.quantile(norms, (0.5, 0.99))
        values = (self._clipped / self._steps, median, highest, norms.max())
        logs.update(zip(_NAMES, map(float, values), strict=True))

    def _collect(self) -> None:
        record = self._asked().notes.norms
        norms, steps, clipped = record.read()
        record.reset()
        self._norms.append(norms)
        self._steps += steps
        self._clipped += clipped

    def _forget(self) -> None:
        self._norms: list[np.ndarray] = []
        self._steps = 0
        self._clipped = 0

    def _asked(self) -> Any:
        return self._optimizer or self.model.optimizer


_NAMES = ("clipped_share", "grad_norm_p50", "grad_norm_p99", "grad_norm_max")
