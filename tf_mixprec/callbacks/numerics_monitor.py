"""Says which tensor was the first with inf or nan, in a step that was."""

import collections
import math
import pathlib
import warnings
from typing import Any

from tf_mixprec.callbacks.arguments import checked_directory
from tf_mixprec.callbacks.asked_optimizer import check_is_wrapped
from tf_mixprec.callbacks.batches import check_steps
from tf_mixprec.callbacks.budget import Budget
from tf_mixprec.callbacks.budget import check_overhead
from tf_mixprec.callbacks.last_batch import shapes_of
from tf_mixprec.callbacks.second_look import SecondLook
from tf_mixprec.diagnostics.explanations import explained
from tf_mixprec.diagnostics.explanations import what_is_bad
from tf_mixprec.diagnostics.numerics_event import NumericsEvent
from tf_mixprec.diagnostics.numerics_event import Sample
from tf_mixprec.diagnostics.numerics_event import sample_of
from tf_mixprec.diagnostics.probed_step import ProbedStep
from tf_mixprec.errors import NumericsWarning
from tf_mixprec.optimizers.arguments import check_is_bool
from tf_mixprec.reports import INFO

_HISTORY = 20  # samples
# Bad steps that are looked at whatever it costs: of all, and of those in a row.
_FIRST = 10
_IN_A_ROW = 3


class NumericsMonitor(SecondLook):
    """Names the first tensor with inf or nan when a step has any.

    ```text
    each step           keeps its batch: nothing is copied or computed
    a step is skipped,  the batch is run through the step again, with statistics
    or its loss is nan  of all tensors: the first bad one is the culprit, an
                        input, weight, layer, the loss, or a gradient; or a
                        gradient only since the loss scale is high, which passes
                        by itself
    every 100 steps     the ranges of all tensors, for what was before
    ```

    Weights, statistics and random states stay as they are. All this takes at
    most `max_overhead` of the time of training, tracing left out, else there
    are fewer samples, and fewer bad steps are looked at; but the first ten are,
    and of bad steps in a row the third. A culprit that does not pass by itself
    gives a `NumericsWarning`, once for each, and a report.

    At the start of `fit` the train function is traced anew, and once more
    after it. With `steps_per_execution` above 1 only the last step of each
    execution is looked at, and executions are counted.

    Args:
        every: Int, in steps: how often ranges are taken. Defaults to 100.
        replay: Bool: whether bad steps are made again. Defaults to true.
        report_dir: A directory for a page and a JSON file on each event.
            Defaults to none.
        max_overhead: Float: the share of the time of training that may be
            added; `None` for no bound. Defaults to 0.03.

    Attributes:
        events: Tuple of `NumericsEvent`s; each can be printed and saved. Only
            those that do not pass by themselves.
        passing_events: Int: how many bad steps came of a loss scale that is
            high, as far as they were looked at.
        history: Tuple of the last 20 samples.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range. At the start of
            training, if the optimizer skips no steps, or if the model is on
            several replicas or under autocast.

    Example:

    ```python
    monitor = mp.callbacks.NumericsMonitor(report_dir="numerics")
    mp.compile(model, "adam", "mse")
    model.fit(x, y, callbacks=[monitor])
    for event in monitor.events:
        print(event)
    ```
    """

    def __init__(
        self,
        every: int = 100,
        replay: bool = True,
        report_dir: str | pathlib.Path | None = None,
        max_overhead: float | None = 0.03,
    ):
        super().__init__()
        check_steps("every", every)
        check_is_bool(
            "replay", replay, "it chooses whether steps are made again"
        )
        check_overhead(max_overhead)
        self._every = every
        self._replay = replay
        self._report_dir: pathlib.Path | None = None
        if report_dir is not None:
            self._report_dir = checked_directory("report_dir", report_dir)
        self._max_overhead = max_overhead
        self._begin()

    def _begin(self) -> None:
        self._events: list[NumericsEvent] = []
        self._history: collections.deque[Sample] = collections.deque(
            maxlen=_HISTORY
        )
        self.passing_events = 0
        self._steps = 0
        self._epoch = 0
        self._sampled_at = 0
        self._in_a_row = 0
        self._looks = 0
        self._loss_was_finite = True
        self._warned: set[tuple[str, str]] = set()
        self._budget = Budget(self._max_overhead)

    @property
    def events(self) -> tuple[NumericsEvent, ...]:
        """What has gone wrong since the start of training."""
        return tuple(self._events)

    @property
    def history(self) -> tuple[Sample, ...]:
        """The last samples."""
        return tuple(self._history)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        check_is_wrapped(
            "NumericsMonitor", optimizer, "it looks at steps that are skipped"
        )
        _check_skips(optimizer)
        self._begin()
        super().on_train_begin(logs)

    def _make_steps(self) -> None:
        subject = self._subject
        # Samples in a graph: compiled by XLA they would have to be traced for
        # longer than they save.
        self._sampled = ProbedStep(
            subject, jit_compile=False, full=False, only_outputs=True
        )
        self._replayed = ProbedStep(
            subject, jit_compile=subject.jit_compile, full=False
        )
        self._shapes: Any = None

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch = epoch

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_train_batch_end(batch, logs)
        self._steps += 1
        if not self._is_bad(logs or {}):
            self._in_a_row = 0
            if self._steps - self._sampled_at >= self._every:
                self._sample()
            return
        self._in_a_row += 1
        if self._replay and self._is_worth_it():
            self._look_again(batch)

    def _is_bad(self, logs: dict[str, Any]) -> bool:
        """Returns whether the step was skipped, or its loss is new to be nan.

        Keras has waited for the logs of this step before it calls callbacks.
        """
        was_finite = self._loss_was_finite
        self._loss_was_finite = math.isfinite(logs.get("loss", 0.0))
        return self._last.found_inf or (
            was_finite and not self._loss_was_finite
        )

    def _is_worth_it(self) -> bool:
        return (
            self._looks < _FIRST
            or self._in_a_row == _IN_A_ROW
            or self._budget.allows()
        )

    def _sample(self) -> None:
        self._sampled_at = self._steps
        batch = self._last.batch
        if batch is None or not self._budget.allows():
            return
        shapes = shapes_of(batch)
        if self._shapes is None:
            self._shapes = shapes
            self._sampled(batch)  # traced now, and not counted
        if shapes == self._shapes:  # not the smaller batch at an end
            self._budget.spend(lambda: self._keep_sample(batch))

    def _keep_sample(self, batch: Any) -> None:
        record = self._sampled(batch, self._scale_of_step())
        self._history.append(sample_of(self._steps, record))

    def _look_again(self, batch_index: int) -> None:
        batch = self._last.batch
        if batch is None:
            return
        self._looks += 1
        if self._looks == 1:
            self._replayed(batch)  # traced now, and not counted
        self._budget.spend(lambda: self._search(batch_index))

    def _search(self, batch_index: int) -> None:
        scale = self._scale_of_step()
        culprit, run = self._culprit(self._replayed)
        if culprit is None:
            return  # of random numbers of a user's own, say
        finding = explained(
            culprit,
            loss_scale=scale,
            has_dynamic_scale=self._subject.has_dynamic_scale,
        )
        if finding.level == INFO:
            self.passing_events += 1
            return
        event = NumericsEvent(
            verdict=f"{culprit.phase.capitalize()}: {what_is_bad(culprit)}",
            findings=(finding,),
            model=self.model.name,
            step=self._steps,
            epoch=self._epoch,
            batch=batch_index,
            loss_scale=scale,
            culprit=culprit,
            record=run(scale),
            history=self.history,
        )
        self._events.append(event)
        self._tell(event)

    def _tell(self, event: NumericsEvent) -> None:
        if self._report_dir is not None:
            self._report_dir.mkdir(parents=True, exist_ok=True)
            for suffix in ("html", "json"):
                name = f"step-{event.step:07d}.{suffix}"
                event.save(self._report_dir / name)
        (finding,) = event.findings
        key = (finding.code, finding.layer)
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(
                f"Step {event.step}: {event.verdict} {finding.why} "
                f"{finding.remedy}",
                NumericsWarning,
                stacklevel=2,
            )


def _check_skips(optimizer: Any) -> None:
    """Raises unless the optimizer skips steps with inf or nan."""
    if not optimizer.skip_nonfinite:
        raise ValueError(
            "`NumericsMonitor` must be used with an optimizer that skips "
            "steps, because a step can be made again only if it has changed "
            "no weight; leave out `skip_nonfinite=False`. Received: "
            f"optimizer={optimizer!r}, with skip_nonfinite=False"
        )
