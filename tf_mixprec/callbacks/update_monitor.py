"""Whether updates change the weights, layer by layer."""

import collections
import dataclasses
import re
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.callbacks.arguments import checked_patterns
from tf_mixprec.callbacks.asked_optimizer import build_if_possible
from tf_mixprec.callbacks.asked_optimizer import check_can_note
from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.asked_optimizer import check_type
from tf_mixprec.callbacks.batches import check_steps
from tf_mixprec.callbacks.sampled_steps import SampledSteps
from tf_mixprec.callbacks.update_statistics import UpdateMeter
from tf_mixprec.diagnostics.updates import rounds_stochastically
from tf_mixprec.errors import DeadUpdateWarning
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import MasterWeightOptimizer
from tf_mixprec.training import keras_internals
from tf_mixprec.training.sixteen_bits import path_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one step has changed in one variable.

    Args:
        step: Which optimizer step, from 1 on.
        layer: The path of the layer.
        variable: The path of the variable.
        elements: Elements with a gradient other than zero; the shares are of
            these.
        median_ratio: The median of |change| / |value|; of at most 65,536
            elements, evenly spaced; nan where all values are zero.
        dead: The share whose value is the same after the step, in the dtype
            in which it is kept: that of the master, if there is one.
        dead_bfloat16: The share whose change is less than half an ulp of the
            value in bfloat16: what would be lost without a master.
        dead_float16: The same in float16.
    """

    step: int
    layer: str
    variable: str
    elements: int
    median_ratio: float
    dead: float
    dead_bfloat16: float
    dead_float16: float


class UpdateMonitor(keras.callbacks.Callback):
    """Watches how much of a weight an update is, and whether it is lost.

    An update below half an ulp of a weight changes nothing: in bfloat16 that
    are updates below 1/512 to 1/256 of the weight. In training that is well
    the median of |update| / |weight| is between 1e-4 and 1e-2.

    ```text
    dead_updates    in the epoch logs: the share of elements with a gradient
                    whose value was the same after the step; whole model, all
                    samples of the epoch
    update_ratio    the median of the medians of the variables
    records         one `UpdateRecord` for each variable and sample
    ```

    The first step of each epoch, and every `every`-th after it, is sampled:
    made by a train function of its own, which notes the gradients that are not
    zero, one byte an element. The weights before the step, or their masters,
    stay on the device until it ends; then one tensor comes to the host. The
    other steps are what they are without this callback. A skipped step is no
    sample, and an epoch without samples logs nan.

    A `DeadUpdateWarning` is given, once in a run, when the share of dead
    updates of a layer is above `threshold` in `patience` samples in a row. Not
    with stochastic rounding and no masters, where an update that changes
    nothing is not lost on average.

    Args:
        every: Int, in batches. Defaults to 100.
        layers: A regular expression, or a list of these, that paths of layers
            match as a whole. Defaults to all layers.
        threshold: Float from 0 to 1. Defaults to 0.5.
        patience: Int, in samples. Defaults to 3.
        optimizer: The `mp.LossScaleOptimizer` that updates the weights.
            Defaults to the model's.

    Attributes:
        records: Tuple of all `UpdateRecord`s of this run.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range. At the start of
            training, if no layer matches, with several steps in an execution,
            if the optimizer is not a `mp.LossScaleOptimizer`, has several
            optimizers or `gradient_accumulation_steps` in it, or if Keras does
            not run on TensorFlow.

    Example:

    ```python
    monitor = mp.callbacks.UpdateMonitor(every=50, layers="decoder/.*")
    model.compile(optimizer=mp.wrap("adam"), loss="mse")
    model.fit(x, y, callbacks=[monitor])
    print(monitor.records[-1])
    ```
    """

    def __init__(
        self,
        every: int = 100,
        layers: str | Sequence[str] | None = None,
        threshold: float = 0.5,
        patience: int = 3,
        optimizer: LossScaleOptimizer | None = None,
    ):
        super().__init__()
        check_steps("every", every)
        check_steps("patience", patience)
        _check_threshold(threshold)
        check_type(optimizer, "its steps note gradients")
        self._every = every
        self._patterns = checked_patterns("layers", layers)
        self._threshold = threshold
        self._patience = patience
        self._optimizer = optimizer
        self._steps: Any = None
        self._meter: Any = None
        self._begin()

    @property
    def records(self) -> tuple[UpdateRecord, ...]:
        """What was seen since the start of training."""
        return tuple(self._records)

    def _begin(self) -> None:
        self._records: list[UpdateRecord] = []
        self._rows_of_epoch = 0
        self._in_a_row: collections.Counter[str] = collections.Counter()
        self._has_warned = False
        self._knows_variables = False
        self._next = 0
        self._samples_now = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._asked()
        check_is_wrapped("UpdateMonitor", optimizer, "its steps note gradients")
        check_can_note("UpdateMonitor", optimizer)
        _check_single_steps(self.model)
        self._begin()
        if self._steps is None or not self._steps.are_of(self.model, optimizer):
            self._steps = SampledSteps(self.model, optimizer)
        if build_if_possible(self.model, optimizer):
            self._make_meter()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._next = 0
        self._rows_of_epoch = len(self._records)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if batch < self._next or not self._asked().built:
            return
        if not self._knows_variables:
            self._make_meter()
        self._next = batch + self._every
        self._samples_now = True
        self._steps.begin()
        self._meter.begin()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not self._samples_now:
            return
        self._samples_now = False
        self._steps.end()
        seen = self._meter.end()
        if seen is not None:
            records = self._records_of(*seen)
            self._records += records
            self._warn_of_dead(records)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None:
            return
        seen = self._records[self._rows_of_epoch :]
        elements = sum(each.elements for each in seen)
        dead = sum(each.dead * each.elements for each in seen)
        ratios = [r.median_ratio for r in seen if r.median_ratio >= 0.0]
        nan = float("nan")
        logs["dead_updates"] = dead / elements if elements else nan
        logs["update_ratio"] = statistics.median(ratios) if ratios else nan

    def _asked(self) -> Any:
        return self._optimizer or self.model.optimizer

    def _make_meter(self) -> None:
        optimizer = self._asked()
        layer_of = _innermost_layers(self.model)
        self._watched = [
            (layer_of[id(variable)], variable)
            for variable in self.model.trainable_variables
            if self._is_watched(layer_of[id(variable)])
        ]
        if not self._watched:
            raise ValueError(
                "`layers` must match the path of a layer with weights, because "
                "it says which ones to watch. Received: "
                f"layers={self._patterns!r}; the paths are "
                f"{sorted(set(layer_of.values()))}"
            )
        with self.model.distribute_strategy.scope():
            optimizer.notes.make_masks()
        variables = [variable for _, variable in self._watched]
        if self._meter is None or not self._meter.is_of(optimizer, variables):
            self._meter = UpdateMeter(optimizer, variables)
        self._knows_variables = True

    def _is_watched(self, layer: str) -> bool:
        return self._patterns is None or any(
            re.fullmatch(pattern, layer) for pattern in self._patterns
        )

    def _narrow_layers(self) -> set[str]:
        """Returns the layers with 16-bit weights that have no masters."""
        inner = self._asked().inner_optimizer
        if isinstance(inner, MasterWeightOptimizer):
            return set()
        return {
            layer
            for layer, variable in self._watched
            if has_16_bits(dtype_name(variable))
        }

    def _records_of(self, step: int, table: Any) -> list[UpdateRecord]:
        """Returns records of the variables that have had a gradient."""
        return [
            UpdateRecord(
                step=step,
                layer=layer,
                variable=variable.path,
                elements=int(elements),
                median_ratio=float(median),
                dead=float(dead / elements),
                dead_bfloat16=float(bfloat16 / elements),
                dead_float16=float(float16 / elements),
            )
            for (layer, variable), (
                elements,
                dead,
                bfloat16,
                float16,
                median,
            ) in zip(self._watched, table, strict=True)
            if elements
        ]

    def _warn_of_dead(self, records: Sequence[UpdateRecord]) -> None:
        if rounds_stochastically(self._asked()):
            return
        dead = _dead_by_layer(records)
        for layer, share in dead.items():
            above = share > self._threshold
            self._in_a_row[layer] = self._in_a_row[layer] + 1 if above else 0
        shares = {
            layer: share
            for layer, share in dead.items()
            if self._in_a_row[layer] >= self._patience
        }
        if shares and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                _message(shares, self._patience, self._narrow_layers()),
                DeadUpdateWarning,
                stacklevel=2,
            )


def _dead_by_layer(records: Sequence[UpdateRecord]) -> dict[str, float]:
    """Returns the share of dead updates of each layer in one step."""
    elements: collections.Counter[str] = collections.Counter()
    dead: dict[str, float] = collections.defaultdict(float)
    for each in records:
        elements[each.layer] += each.elements
        dead[each.layer] += each.dead * each.elements
    return {layer: dead[layer] / elements[layer] for layer in elements}


def _message(
    shares: dict[str, float], patience: int, narrow_layers: set[str]
) -> str:
    """Returns what is lost, where, and what to do."""
    remedies = []
    if narrow_layers & shares.keys():
        remedies.append(
            "keep 16-bit weights with float32 masters (`mp.wrap` does unless "
            "`master_weights=False`) or in float32 by a policy such as "
            "`mixed_bfloat16`"
        )
    wide = [layer for layer in shares if layer not in narrow_layers]
    if wide:
        remedies.append(
            "raise the learning rate of what is updated in float32 already "
            f"({', '.join(wide)}), or freeze it"
        )
    worst = sorted(shares.items(), key=lambda item: -item[1])
    named = ", ".join(f"{layer} ({share:.0%})" for layer, share in worst)
    return (
        f"Updates change nothing, in {patience} samples in a row: {named}. "
        "They are below half an ulp of the weights. What to do: "
        f"{'; '.join(remedies)}."
    )


def _innermost_layers(model: keras.Model) -> dict[int, str]:
    """Returns by `id` of a variable the path of the layer that has it."""
    return {
        id(variable): path_of(layer)
        for layer in keras_internals.all_layers(model)  # outer ones first
        for variable in layer.trainable_variables
    }


def _check_threshold(threshold: Any) -> None:
    """Raises unless this is a share."""
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        raise TypeError(
            "`threshold` must be a float, because a share is compared with "
            f"it. Received: threshold={threshold!r}"
        )
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(
            "`threshold` must be between 0 and 1, because it is a share. "
            f"Received: threshold={threshold!r}"
        )


def _check_single_steps(model: keras.Model) -> None:
    """Raises if several steps are made in one execution."""
    if model.steps_per_execution != 1:
        raise ValueError(
            "`UpdateMonitor` must be used with `steps_per_execution=1`, "
            "because it compares the weights before and after a step. "
            f"Received: steps_per_execution={model.steps_per_execution!r}"
        )
