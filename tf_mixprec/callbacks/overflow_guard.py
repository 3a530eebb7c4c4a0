"""Says when steps are skipped again and again, and which gradients are bad."""

import warnings
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec.callbacks.asked_optimizer import build_if_possible
from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.asked_optimizer import check_type
from tf_mixprec.callbacks.batches import EveryBatches
from tf_mixprec.callbacks.batches import check_steps
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.optimizers import LossScaleOptimizer

_ACTIONS = ("warn", "stop", "raise")
_NAMED = 10


class Overflows(NamedTuple):
    """What the optimizer knows of skipped steps.

    Args:
        in_a_row: The last steps skipped, up to now.
        before: Steps skipped before these: the same as long as a run lasts.
        at_floor: Steps skipped at the floor since the scale was last above.
        loss_scale: The scale of the next step, dimensionless.
    """

    in_a_row: int
    before: int
    at_floor: int
    loss_scale: float

    @classmethod
    def of(cls, optimizer: LossScaleOptimizer) -> "Overflows":
        """Asks an optimizer, and waits for the device."""
        # Not `int(variable)`, which a mirrored variable does not have.
        to_numpy = keras.ops.convert_to_numpy
        in_a_row = int(to_numpy(optimizer.consecutive_skipped_steps))
        return cls(
            in_a_row,
            int(to_numpy(optimizer.skipped_steps)) - in_a_row,
            optimizer.skipped_at_floor,
            float(to_numpy(optimizer.loss_scale)),
        )


class OverflowGuard(keras.callbacks.Callback):
    """Acts when a run does not recover from inf and nan, and says why.

    A loss scale that is too high is found by skipping some steps. When that
    does not end, something is wrong, and nothing is trained:

    ```text
    `patience` steps in a row are skipped
    `floor_patience` steps are skipped while the scale is at its floor: at
      `min_scale` since it was last above it; a fixed scale is always at its
      floor, so there it is since the start of `fit`; not with the
      `loss_scales` of a `mp.TrainStep`, of which each finds its own
    ```

    The message names the variables whose gradients were inf or nan. They are
    counted on the device, which is asked every `check_every` batches and at
    the end of each epoch, and otherwise never waited for; so a run of skipped
    steps that ends by itself in between is not acted on.

    To count, the train function is traced anew at the start of `fit`; if the
    variables are not known then, for want of an `Input`, after its first batch,
    and counting starts there.

    Args:
        patience: Int, in steps. Defaults to 25: from `2.0**24` the scale has
            come down to 1 by then.
        floor_patience: Int, in steps. Defaults to 25.
        action: `"warn"`: a `mp.LossScaleWarning` for each such event. `"stop"`:
            the warning, and the end of training after this batch. `"raise"`: a
            `FloatingPointError` at once, which leaves the files of
            `keras.callbacks.BackupAndRestore` where they are. Defaults to
            `"warn"`.
        check_every: Int, in batches. Defaults to 50.
        optimizer: The `mp.LossScaleOptimizer` to guard. Defaults to the
            model's; a model that trains with several needs to be told.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range. At the start of
            training, if the optimizer skips no steps or Keras does not run on
            TensorFlow.

    Example:

    ```python
    guard = mp.callbacks.OverflowGuard(action="raise")
    model.compile(optimizer=mp.wrap("adam"), loss="mse")
    model.fit(x, y, callbacks=[guard])  # or `mp.fit(step, ...)`
    ```
    """

    def __init__(
        self,
        patience: int = 25,
        floor_patience: int = 25,
        action: str = "warn",
        check_every: int = 50,
        optimizer: LossScaleOptimizer | None = None,
    ):
        super().__init__()
        check_steps("patience", patience)
        check_steps("floor_patience", floor_patience)
        _check_action(action)
        check_type(optimizer, "it counts skipped steps")
        self._patience = patience
        self._floor_patience = floor_patience
        self._action = action
        self._batches = EveryBatches(check_every)
        self._optimizer = optimizer
        self._train_function: Any = None
        self._begin()

    def _begin(self) -> None:
        """Knows of no event and of no variable."""
        self._counts = False
        self._seen_run: int | None = None
        self._seen_at_floor = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._asked()
        _check_can_guard(optimizer)
        self._begin()
        build_if_possible(self.model, optimizer)
        self._count_if_built()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batches.restart()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._count_if_built()
        if self._batches.have_passed(batch):
            self._check()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._check()

    def _asked(self) -> Any:
        return self._optimizer or self.model.optimizer

    def _count_if_built(self) -> None:
        """Makes the steps to come count, once in a call of `fit`."""
        optimizer = self._asked()
        if self._counts or not optimizer.built:
            return
        self._counts = True
        with self.model.distribute_strategy.scope():
            optimizer.count_nonfinite()
        # Equal and not the same: a bound method is made anew.
        if self.model.train_function != self._train_function:
            self.model.make_train_function(force=True)
            self._train_function = self.model.train_function

    def _check(self) -> None:
        optimizer = self._asked()
        found = Overflows.of(optimizer)
        events = []
        if found.in_a_row >= self._patience and found.before != self._seen_run:
            self._seen_run = found.before
            events.append(
                f"the last {found.in_a_row} steps were skipped, all in a row"
            )
        if found.at_floor < self._seen_at_floor:  # it has been above
            self._seen_at_floor = 0
        if (
            found.at_floor >= self._floor_patience
            and not self._seen_at_floor
            and not optimizer.has_other_scales
        ):
            self._seen_at_floor = found.at_floor
            floor = "at its floor" if optimizer.dynamic else "fixed"
            events.append(
                f"{found.at_floor} steps were skipped with the loss scale "
                f"{floor}"
            )
        if events:
            self._act(
                _message(events, found.loss_scale, optimizer.nonfinite_counts)
            )

    def _act(self, message: str) -> None:
        if self._action == "raise":
            raise FloatingPointError(message)
        if self._action == "stop":
            self.model.stop_training = True
        warnings.warn(message, LossScaleWarning, stacklevel=2)


def _message(
    events: list[str], loss_scale: float, counts: dict[str, int]
) -> str:
    """Returns what has happened, where, and what to do."""
    text = "; ".join(events)
    return (
        f"{text[0].upper()}{text[1:]}, because gradients were inf or nan. The "
        f"loss scale is {loss_scale:g}. {_where(counts)} What to do: if there "
        "is inf or nan in the inputs or the targets, look at the data. If "
        "not, train in bfloat16, which has the range of float32; or keep the "
        "layers of these variables in float32, with `mp.PrecisionRules`; or "
        "lower the learning rate, or clip the gradients, where the loss has "
        "been growing."
    )


def _where(counts: dict[str, int]) -> str:
    """Returns the worst variables, in words."""
    if not counts:
        return "No variable was seen with such a gradient."
    # Those with equal counts from the loss on: inf and nan spread from there.
    worst = sorted(reversed(counts.items()), key=lambda item: -item[1])
    named = ", ".join(f"{path} ({count})" for path, count in worst[:_NAMED])
    left = len(worst) - _NAMED
    more = f" and {left} more variables" if left > 0 else ""
    return f"Variables with such gradients, and how often: {named}{more}."


def _check_action(action: Any) -> None:
    """Raises unless this is a known action."""
    if not isinstance(action, str):
        raise TypeError(
            "`action` must be a string, because it names what is done. "
            f"Received: action={action!r}"
        )
    if action not in _ACTIONS:
        raise ValueError(
            "`action` must be 'warn', 'stop' or 'raise', because it names what "
            f"is done. Received: action={action!r}"
        )


def _check_can_guard(optimizer: Any) -> None:
    """Raises unless the optimizer skips steps and can count gradients."""
    check_is_wrapped(
        "OverflowGuard", optimizer, "that skips steps and counts them"
    )
    if not optimizer.skip_nonfinite:
        raise ValueError(
            "`OverflowGuard` must be used with an optimizer that skips steps, "
            "because it acts on these; leave out `skip_nonfinite=False`. "
            f"Received: optimizer={optimizer!r}, with skip_nonfinite=False"
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`OverflowGuard` must be used with the TensorFlow backend of "
            "Keras, because gradients are counted there only; "
            "`mp.callbacks.LossScaleLogger` works on the others. Received: "
            f"the backend {keras.backend.backend()!r}"
        )
