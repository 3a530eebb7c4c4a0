"""Values of metrics that wait for the step that makes their variables."""

import warnings
from collections.abc import Callable
from typing import Any

from tf_mixprec.training import checkpoint_fit
from tf_mixprec.training import checkpoint_state as state
from tf_mixprec.training.checkpoint_file import CheckpointFile
from tf_mixprec.training.checkpoint_file import Saved
from tf_mixprec.training.instance_methods import cover_method

_ATTRIBUTE = "_pending_checkpoint"


class Pending:
    """The metrics of a checkpoint, until the first step or `reset_metrics`.

    Args:
        step: The `mp.TrainStep`.
        file: The checkpoint.

    Attributes:
        groups: By name, the variables whose values wait.
    """

    def __init__(self, step: Any, file: CheckpointFile):
        self._step = step
        self._path = file.path
        self._uncover: list[Callable[[], None]] = []
        self.groups: dict[str, list[Saved]] = {
            name: file.groups[name]
            for name in state.OF_FIRST_STEP
            if name in file.groups
        }

    @classmethod
    def of(cls, step: Any) -> "Pending | None":
        """Returns what waits for a step, `None` if nothing does."""
        return vars(step).get(_ATTRIBUTE)

    def wait(self) -> None:
        """Waits until there are the variables; not at all if there are."""
        step = self._step
        if state.groups_of_first_step(step):
            step.reset_metrics()  # what was saved may have been none
            self._finish()
            return
        former = Pending.of(step)
        if former is not None:
            former._give_up()
        setattr(step, _ATTRIBUTE, self)
        self._uncover = [
            cover_method(step, "_build", self._finishing),
            cover_method(step, "reset_metrics", self._dropping(state.TOTALS)),
            cover_method(
                step.model, "reset_metrics", self._dropping(state.METRICS)
            ),
        ]

    def _finishing(self, build: Callable[[Any], None]) -> Callable[[Any], None]:
        """Returns the method that makes the variables, and gives them values.

        Args:
            build: The method that makes them.
        """

        def build_and_finish(batch: Any) -> None:
            build(batch)
            self._give_up()
            self._finish()

        return build_and_finish

    def _give_up(self) -> None:
        """Waits no longer."""
        for uncover in self._uncover:
            uncover()
        delattr(self._step, _ATTRIBUTE)

    def _dropping(
        self, name: str
    ) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Returns what makes a method drop the values of a group."""

        def replacement(reset: Callable[[], None]) -> Callable[[], None]:
            def reset_and_drop() -> None:
                reset()
                self.groups.pop(name, None)

            return reset_and_drop

        return replacement

    def _finish(self) -> None:
        own = state.groups_of_first_step(self._step)
        with self._step.model.distribute_strategy.scope():
            for name, saved in self.groups.items():
                if checkpoint_fit.are_alike(saved, own[name]):
                    for write in checkpoint_fit.group_writes(saved, own[name]):
                        write()
                else:
                    self._warn(name)

    def _warn(self, name: str) -> None:
        warnings.warn(
            f"The {name} in {self._path!r} are others than those of the step, "
            "so those of the step start anew; the first epoch after the "
            "restoration has means over its last steps. Give the step the "
            "same metrics to go on with them.",
            stacklevel=2,
        )
