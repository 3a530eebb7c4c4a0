"""Some steps of a model made by a function that notes more than the others."""

from typing import Any


class SampledSteps:
    """Two train functions, of which one notes where there are gradients.

    The other steps cost nothing. Each is traced when it is first used.

    Args:
        model: The model that is trained.
        optimizer: The `mp.LossScaleOptimizer`, with masks made.
    """

    def __init__(self, model: Any, optimizer: Any):
        self._model = model
        self._notes = optimizer.notes
        self._usual: Any = None
        self._noting: Any = None
        self._notes.notes_masks = False

    def are_of(self, model: Any, optimizer: Any) -> bool:
        """Returns whether these are the steps of a model and an optimizer."""
        return self._model is model and self._notes is optimizer.notes

    def begin(self) -> None:
        """Makes the next step note."""
        model = self._model
        # Equal and not the same: that of a `mp.TrainStep`, a bound method, is
        # made anew. Another callback may have made another function.
        if model.train_function != self._usual:
            self._usual = model.train_function
            model.make_train_function(force=True)
            self._noting = model.train_function
        model.train_function = self._noting
        self._notes.notes_masks = True

    def end(self) -> None:
        """Makes the next step one of the others."""
        self._notes.notes_masks = False
        if self._noting is not None and (
            self._model.train_function == self._noting
        ):
            self._model.train_function = self._usual
