"""Moves layers to float32 in training when 16 bits do not suffice for them."""

import collections
import dataclasses
from typing import Any

from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.batches import check_steps
from tf_mixprec.callbacks.layer_moves import LayerMoves
from tf_mixprec.callbacks.second_look import SecondLook
from tf_mixprec.diagnostics import culprit as phases
from tf_mixprec.diagnostics.lost_gradients import LostGradients
from tf_mixprec.diagnostics.probed_step import ProbedStep

OVERFLOW = "overflow"
LOST_GRADIENTS = "lost gradients"
FINE = "fine in 16 bits"
_BACKOFF = 2  # a move back that is refused waits for twice as long


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrecisionMove:
    """Layers that got another policy, all in one step.

    Args:
        step: After which step of `fit`, from 1.
        layers: The paths of the layers.
        to_float32: Whether they were moved there, or back.
        reason: `"overflow"`: they were where inf or nan came from; `"lost
            gradients"`: gradients became zero; `"fine in 16 bits"`: neither is
            so any more.
        value: Of an overflow the number of steps; else the largest share of
            gradients that is lost.
    """

    step: int
    layers: tuple[str, ...]
    to_float32: bool
    reason: str
    value: float


class AdaptivePrecision(SecondLook):
    """Moves layers to float32 while a model trains, where 16 bits fail.

    ```text
    a step is skipped   it is made again, with statistics of all tensors. The
                        layer where inf or nan came from, at a loss scale of 1
                        too, is noted; noted `patience` times, it is moved
    every `every` steps the gradients of the batch are compared with those in
                        float32, without dropout. Layers of which more than
                        `threshold` are zero only in 16 bits, `patience` times
                        in a row, are moved, with those where they become zero
    `back_after` steps  without a move: layers that were moved are tried in 16
                        bits on the batch, and stay there if all is finite, at
                        this loss scale or a lower one, and no more is lost than
                        now, or than `threshold`; else that is tried again after
                        twice as long
    ```

    Steps that are skipped since the loss scale is too high are no reason: that
    passes. A note is forgotten after `every` steps without another one. Each
    move is one retrace of the train function, and so are start and end of
    `fit`. The layers keep their new policies afterwards, and are saved with
    them.

    ```text
    float32_layers      in the epoch logs: how many layers are moved
    records             a `PrecisionMove` for each move
    ```

    Args:
        every: Int, in steps. Defaults to 100.
        patience: Int: how often something must be seen. Defaults to 3.
        threshold: Float from 0 to 1: the share of the gradients of a layer's
            weights that may be lost. Defaults to 0.1.
        back_after: Int, in steps; `None` for never. Defaults to 2000.
        max_moves: Int: how many moves there are at most, those back included.
            Defaults to 8.

    Attributes:
        records: Tuple of the `PrecisionMove`s of this run.
        float32_layers: Tuple of the paths of the layers that are moved.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range. At the start of
            training, if the optimizer is not a `mp.LossScaleOptimizer`, or if
            the model is on several replicas or under autocast.

    Example:

    ```python
    adaptive = mp.callbacks.AdaptivePrecision()
    mp.compile(model, "adam", "mse")
    model.fit(x, y, callbacks=[adaptive])
    print(adaptive.records)
    ```
    """

    def __init__(
        self,
        every: int = 100,
        patience: int = 3,
        threshold: float = 0.1,
        back_after: int | None = 2000,
        max_moves: int = 8,
    ):
        super().__init__()
        check_steps("every", every)
        check_steps("patience", patience)
        _check_threshold(threshold)
        if back_after is not None:
            check_steps("back_after", back_after)
        check_steps("max_moves", max_moves)
        self._every = every
        self._patience = patience
        self._threshold = threshold
        self._back_after = back_after
        self._max_moves = max_moves
        self._moves: LayerMoves | None = None
        self._moves_of: Any = None
        self._begin()

    def _begin(self) -> None:
        self._records: list[PrecisionMove] = []
        self._step = 0
        self._in_a_row = 0
        self._noted: collections.Counter[str] = collections.Counter()
        self._noted_at = 0
        self._lost: collections.Counter[str] = collections.Counter()
        self._wait = self._back_after
        self._quiet_since = 0

    @property
    def records(self) -> tuple[PrecisionMove, ...]:
        """The moves since the start of training."""
        return tuple(self._records)

    @property
    def float32_layers(self) -> tuple[str, ...]:
        """The paths of the layers that are in float32 by this callback."""
        return () if self._moves is None else tuple(self._moves.moved)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        check_is_wrapped(
            "AdaptivePrecision",
            self.model.optimizer,
            "it looks at steps that are skipped",
        )
        self._begin()
        if self._moves_of is not self.model:
            self._moves, self._moves_of = None, self.model
        super().on_train_begin(logs)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_train_batch_end(batch, logs)
        self._step += 1
        # Keras has waited for this step before it calls callbacks.
        is_bad = self._last.found_inf
        self._in_a_row = self._in_a_row + 1 if is_bad else 0
        if self._last.batch is None or len(self._records) >= self._max_moves:
            return
        if self._moves is None:
            self._moves = LayerMoves(self.model)
        if is_bad:
            self._look_for_overflow(self._moves)
        elif self._step % self._every == 0:
            self._look_for_lost_gradients(self._moves)
        elif self._is_time_to_go_back(self._moves):
            self._try_back(self._moves)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is not None:
            logs["float32_layers"] = len(self.float32_layers)

    def _make_steps(self) -> None:
        """Makes the steps that look at the model with the policies it has."""
        jit_compile = self._subject.jit_compile
        self._probed = ProbedStep(
            self._subject, jit_compile=jit_compile, full=False
        )
        self._gradients = LostGradients(self._subject, jit_compile=jit_compile)

    def _look_for_overflow(self, moves: LayerMoves) -> None:
        if self._step - self._noted_at > self._every:
            self._noted.clear()
        if not _is_worth_a_look(self._in_a_row, self._patience):
            return
        culprit, _ = self._culprit(self._probed)
        if culprit is None or culprit.phase not in _OF_THE_LAYER:
            return
        self._noted_at = self._step
        self._noted[culprit.layer] += 1
        count = self._noted[culprit.layer]
        if count >= self._patience and moves.can_move(culprit.layer):
            self._move(moves, [culprit.layer], OVERFLOW, float(count))

    def _look_for_lost_gradients(self, moves: LayerMoves) -> None:
        batch, scale = self._last.batch, self._scale_of_step()
        shares = self._gradients.by_layer(batch, scale) or {}
        lost = {k: v for k, v in shares.items() if v > self._threshold}
        self._lost = collections.Counter(
            {layer: self._lost[layer] + 1 for layer in lost}
        )
        if max(self._lost.values(), default=0) < self._patience:
            return
        on_the_way = self._gradients.on_the_way(batch, scale, self._threshold)
        layers = [p for p in {**on_the_way, **lost} if moves.can_move(p)]
        if layers:
            worst = max(lost.values())
            self._move(moves, layers, LOST_GRADIENTS, worst)

    def _move(
        self, moves: LayerMoves, layers: list[str], reason: str, value: float
    ) -> None:
        moves.to_float32(layers)
        self._moved(moves, layers, reason, value)

    def _moved(
        self, moves: LayerMoves, layers: list[str], reason: str, value: float
    ) -> None:
        """Trains on with the policies that there are now."""
        self._records.append(
            PrecisionMove(
                step=self._step,
                layers=tuple(layers),
                to_float32=reason != FINE,
                reason=reason,
                value=value,
            )
        )
        self._noted.clear()
        self._lost.clear()
        self._quiet_since = self._step
        moves.retrace()
        self._make_current_steps()

    def _is_time_to_go_back(self, moves: LayerMoves) -> bool:
        return (
            self._wait is not None
            and bool(moves.moved)
            and self._step - self._quiet_since >= self._wait
        )

    def _try_back(self, moves: LayerMoves) -> None:
        batch, scale = self._last.batch, self._scale_of_step()
        now = self._gradients.by_layer(batch, scale) or {}
        layers = list(moves.moved)
        moves.back(layers)
        tried = LostGradients(
            self._subject, jit_compile=self._subject.jit_compile
        )
        then = _shares_where_finite(tried, batch, scale)
        if then is not None and all(
            share <= max(self._threshold, now.get(layer, 0.0))
            for layer, share in then.items()
        ):
            self._moved(moves, layers, FINE, max(then.values(), default=0.0))
            return
        moves.to_float32(layers)
        self._quiet_since = self._step
        self._wait = _BACKOFF * (self._wait or 0)


_OF_THE_LAYER = (phases.FORWARD, phases.BACKWARD)


def _shares_where_finite(
    gradients: LostGradients, batch: Any, scale: float
) -> dict[str, float] | None:
    """Returns shares that are lost, at a scale that a dynamic one comes to."""
    while scale >= 1.0:
        shares = gradients.by_layer(batch, scale)
        if shares is not None:
            return shares
        scale /= 16.0
    return None


def _is_worth_a_look(in_a_row: int, patience: int) -> bool:
    """Returns whether a step that is skipped is made again.

    While the loss scale comes down there can be many of them in a row.
    """
    return in_a_row <= patience or in_a_row & (in_a_row - 1) == 0


def _check_threshold(threshold: Any) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        raise TypeError(
            "`threshold` must be a float, because a share is compared with "
            f"it. Received: threshold={threshold!r}"
        )
    if not 0.0 <= threshold < 1.0:
        raise ValueError(
            "`threshold` must be at least 0 and below 1, because no more than "
            f"all gradients can be lost. Received: threshold={threshold!r}"
        )
