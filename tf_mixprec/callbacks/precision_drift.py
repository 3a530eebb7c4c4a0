"""How far training in 16 bits is from float32, as it goes on."""

import dataclasses
import math
import warnings
from typing import Any

from tf_mixprec.callbacks.batches import check_steps
from tf_mixprec.callbacks.budget import Budget
from tf_mixprec.callbacks.budget import check_overhead
from tf_mixprec.callbacks.last_batch import shapes_of
from tf_mixprec.callbacks.second_look import SecondLook
from tf_mixprec.diagnostics.compare import compared_policy
from tf_mixprec.diagnostics.compare import judged
from tf_mixprec.diagnostics.comparison import ComparedPolicy
from tf_mixprec.diagnostics.comparison_step import WEIGHT_GRADIENT
from tf_mixprec.diagnostics.comparison_step import ComparisonStep
from tf_mixprec.errors import NumericsWarning
from tf_mixprec.reports import INFO


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriftRecord:
    """How far a model was from float32 after a step.

    Args:
        step: Which step of `fit`, from 1.
        comparison: The comparison, on the batch of that step.
    """

    step: int
    comparison: ComparedPolicy

    @property
    def least_cosine(self) -> float:
        """The least cosine of the gradient of a weight with float32."""
        gradients = self.comparison.of_role(WEIGHT_GRADIENT)
        tensor = self.comparison.least_cosine
        if tensor is None or any(e.difference.nonfinite for e in gradients):
            return math.nan
        return tensor.difference.cosine


class PrecisionDrift(SecondLook):
    """Compares a model with itself in float32, again and again in training.

    `mp.compare` says how far rounding takes a model at one moment; weights and
    gradients change. Every `every` steps the batch of the step is run in both
    precisions, without dropout, and everything is put back.

    ```text
    loss_drift        in the epoch logs: the relative change of the loss by the
                      precision, mean of the magnitudes in this epoch
    gradient_cosine   the least cosine of the gradient of a weight with that in
                      float32, in this epoch
    records           a `DriftRecord` for each comparison, layer by layer
    ```

    Comparisons with inf or nan do not count, and an epoch without others logs
    nan. A `NumericsWarning` is given, once
    in a run, when comparisons in a row find what `mp.compare` would warn of.

    At the start of `fit` the train function is traced anew, and once more
    after it.

    Args:
        every: Int, in steps. Defaults to 500.
        patience: Int: after how many such comparisons in a row to warn.
            Defaults to 3.
        max_overhead: Float: the share of the time of training that comparisons
            may take, tracing left out, else there are fewer of them; `None`
            for no bound. Defaults to 0.03.

    Attributes:
        records: Tuple of all `DriftRecord`s of this run.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range. At the start of
            training, if the model is on several replicas or under autocast.

    Example:

    ```python
    drift = mp.callbacks.PrecisionDrift(every=200)
    mp.compile(model, "adam", "mse")
    history = model.fit(x, y, callbacks=[drift])
    print(history.history["gradient_cosine"])
    ```
    """

    def __init__(
        self,
        every: int = 500,
        patience: int = 3,
        max_overhead: float | None = 0.03,
    ):
        super().__init__()
        check_steps("every", every)
        check_steps("patience", patience)
        check_overhead(max_overhead)
        self._every = every
        self._patience = patience
        self._max_overhead = max_overhead
        self._begin()

    def _begin(self) -> None:
        self._records: list[DriftRecord] = []
        self._of_epoch = 0
        self._steps = 0
        self._compared_at = 0
        self._in_a_row = 0
        self._has_warned = False
        self._budget = Budget(self._max_overhead)

    @property
    def records(self) -> tuple[DriftRecord, ...]:
        """What was found since the start of training."""
        return tuple(self._records)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begin()
        super().on_train_begin(logs)

    def _make_steps(self) -> None:
        self._step = ComparisonStep(self._subject, None, jit_compile=False)
        self._shapes: Any = None

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._of_epoch = len(self._records)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_train_batch_end(batch, logs)
        self._steps += 1
        if self._steps - self._compared_at < self._every:
            return
        self._compared_at = self._steps
        data = self._last.batch
        if data is None or not self._budget.allows():
            return
        shapes = shapes_of(data)
        if self._shapes is None:
            self._shapes = shapes
            self._step(data, 1.0)  # traced now, and not counted
        if shapes == self._shapes:  # not the smaller batch at an end
            self._budget.spend(lambda: self._compare(data))

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None:
            return
        seen = self._records[self._of_epoch :]
        nan = math.nan
        changes = _known([abs(e.comparison.loss_change) for e in seen])
        cosines = _known([each.least_cosine for each in seen])
        logs["loss_drift"] = sum(changes) / len(changes) if changes else nan
        logs["gradient_cosine"] = min(cosines, default=nan)

    def _compare(self, data: Any) -> None:
        scale = self._subject.loss_scale
        loss, wide, tensors = self._step(data, scale)
        comparison = compared_policy(None, loss, wide, tensors)
        self._records.append(
            DriftRecord(step=self._steps, comparison=comparison)
        )
        found = [each for each in judged(comparison) if each.level != INFO]
        self._in_a_row = self._in_a_row + 1 if found else 0
        if self._in_a_row >= self._patience and not self._has_warned:
            self._has_warned = True
            worst = found[0]
            warnings.warn(
                f"In {self._in_a_row} comparisons in a row training is far "
                f"from float32. At step {self._steps}, {worst.what} "
                f"{worst.why} {worst.remedy}",
                NumericsWarning,
                stacklevel=2,
            )


def _known(values: list[float]) -> list[float]:
    return [each for each in values if math.isfinite(each)]
