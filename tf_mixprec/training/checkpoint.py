"""`Checkpoint`: a run on disk, to go on from with the same bits."""

import os
import re
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.training import checkpoint_data
from tf_mixprec.training import checkpoint_file
from tf_mixprec.training import checkpoint_fit
from tf_mixprec.training import checkpoint_model
from tf_mixprec.training import checkpoint_state as state
from tf_mixprec.training import misuse
from tf_mixprec.training.checkpoint_file import CheckpointFile
from tf_mixprec.training.checkpoint_file import Saved
from tf_mixprec.training.checkpoint_pending import Pending
from tf_mixprec.training.train_step import TrainStep

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_PREFIX = "ckpt"


class Checkpoint:
    """Saves a run, and restores it to go on with the same bits.

    ```text
    saved      weights, statistics, seed generators of layers and of a
               subclass of the step
               optimizer: slots, iterations, learning rate, masters
               loss scale and its counters, of each loss
               metrics, and means of the epoch, since `reset_metrics`
               the position in the data, buffers of shuffling included
    not saved  the program: layers, losses, the numbers of the rule, schedules,
               its own counters, callbacks, models that the step does not train
               random numbers of Python and NumPy, and those drawn without a
               seed: Keras's global generator has no public name, TensorFlow's
               has no state
               what `mp.callbacks.OverflowGuard` counts
    ```

    A checkpoint is complete or not there: a process that is killed at any
    moment, while it saves too, leaves the former one as it was. Nothing is
    added to the steps.

    Other knobs than those of the saved run are taken from the program:

    ```text
    rule of the scale   its numbers are the program's. The scale and its
                        counters go on, moved into the new bounds; between a
                        fixed and a dynamic scale, at the program's start
    replicas            any number; sums of metrics go to the first one, what
                        each has its own of is taken from the first
    policy              weights and slots are cast, rounded to nearest; masters
                        are the float32 weights, and become them
    accumulation_steps  any number
    metrics             if they are others, they start anew, with a warning
    ```

    The learning rate is restored, unless it is a schedule. For `mp.fit`, call
    `save` at the end of an epoch and give `initial_epoch`; its data has no
    position that is saved.

    Args:
        step: The `mp.TrainStep`, in one process.
        directory: Where to save; made if need be.
        data: `iter(dataset)` of a `tf.data.Dataset`, whose position is saved:
            of one that repeats itself, since at its end it has none. Give
            `shuffle` a seed, and TensorFlow the same one in every process
            (`keras.utils.set_random_seed`): the next epoch is shuffled by
            them. Defaults to none.
        max_to_keep: Int, at least 1: how many checkpoints are kept, or `None`
            for all. Defaults to 3.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `max_to_keep` is below 1, or on several workers.

    Example:

    >>> import tempfile
    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> def make_step():
    ...     layers = [keras.Input((4,)), keras.layers.Dense(1)]
    ...     return mp.TrainStep(keras.Sequential(layers), "adam", "mse")
    >>> directory = tempfile.mkdtemp()
    >>> step = make_step()
    >>> logs = step(np.ones((8, 4)), np.ones((8, 1)))
    >>> path = mp.Checkpoint(step, directory).save()
    >>> step = make_step()
    >>> mp.Checkpoint(step, directory).restore() == path
    True
    >>> int(step.optimizer.iterations)
    1
    """

    def __init__(
        self,
        step: TrainStep,
        directory: str | os.PathLike[str],
        *,
        data: Any = None,
        max_to_keep: int | None = 3,
    ):
        _check_step(step)
        checkpoint_data.check_data(data)
        _check_max_to_keep(max_to_keep)
        self._step = step
        self._directory = _checked_directory(directory)
        self._data = data
        self._max_to_keep = max_to_keep

    def save(self) -> str:
        """Saves the run as it is now, and returns the path.

        Waits for the device. Older checkpoints than the last `max_to_keep` are
        deleted once this one is complete.

        Returns:
            What all its files begin with, as `restore` takes it.

        Raises:
            RuntimeError: If the model has been compiled anew.
            ValueError: If the model is not built, if `data` has a state that
                cannot be saved, or if the list in the directory is damaged.
        """
        misuse.check_is_current(self._step)
        pending = Pending.of(self._step)
        if pending is None:
            checkpoint_model.check_is_built(self._step.model)
        checkpoint_model.build_optimizer(self._step)
        number = self._next_number()
        root = checkpoint_file.root(
            {
                **state.groups_of(self._step),
                state.MASTERS: self._masters(),
                **({} if pending is None else pending.groups),
            },
            checkpoint_fit.about(self._step),
            self._position(),
        )
        manager = tf.train.CheckpointManager(
            root, self._directory, self._max_to_keep, checkpoint_name=_PREFIX
        )
        return manager.save(checkpoint_number=number)

    def restore(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Gives the run what a checkpoint holds.

        All of it is read and compared with the run before anything changes. It
        can be called before the first step: loss, metrics and means of the
        epoch then come back with that step, which makes their variables,
        unless they are reset before.

        Args:
            path: As `save` returned it. Defaults to the latest.

        Returns:
            The path, or `None` if there is no checkpoint; nothing is done then.

        Raises:
            RuntimeError: If the model has been compiled anew.
            ValueError: If a file is damaged, or of another model, optimizer or
                data set; no variable is changed then. If the model cannot be
                built without a batch.
        """
        misuse.check_is_current(self._step)
        path = self.latest if path is None else os.fspath(path)
        if path is None:
            return None
        file = CheckpointFile(path)
        checkpoint_fit.check_optimizer(file, self._step)
        self._check_has_data(file)
        checkpoint_model.build(self._step.model, file.about["build_config"])
        checkpoint_model.build_optimizer(self._step)
        own = state.groups_of(self._step)
        checkpoint_fit.check_fits(file, own)
        writes = checkpoint_fit.writes(file, self._step, own)
        if self._data is not None:
            checkpoint_data.put(self._data, file.data, path)
        with self._step.model.distribute_strategy.scope():
            for write in writes:
                write()
        Pending(self._step, file).wait()
        return path

    @property
    def latest(self) -> str | None:
        """The path of the latest checkpoint, `None` if there is none."""
        paths = self.checkpoints
        return paths[-1] if paths else None

    @property
    def checkpoints(self) -> list[str]:
        """The paths of all checkpoints, the latest one last."""
        listed = self._listed()
        # Of the last one any file counts: if some are lost, that is an error.
        return [
            *filter(checkpoint_file.has_index, listed[:-1]),
            *filter(checkpoint_file.exists, listed[-1:]),
        ]

    def _listed(self) -> list[str]:
        """Returns the paths that were completed, deleted ones included."""
        listing = os.path.join(self._directory, "checkpoint")
        if not tf.io.gfile.exists(listing):
            return []
        try:
            found = tf.train.get_checkpoint_state(self._directory)
        except ValueError:  # it has no line for the latest one
            found = None
        if found is None:
            raise ValueError(
                "The list of checkpoints must be as it was written, because it "
                "says which ones are complete; delete it, and restore one by "
                f"its path without the suffix. Received: {listing!r}, which "
                "cannot be read"
            )
        latest = found.model_checkpoint_path
        others = [p for p in found.all_model_checkpoint_paths if p != latest]
        return [*others, latest]

    def _next_number(self) -> int:
        """Returns a number above those of all complete checkpoints.

        One that a kill has left unfinished is written over.
        """
        paths = self._listed() or [
            path.removesuffix(".index")
            for path in tf.io.gfile.glob(
                os.path.join(self._directory, f"{_PREFIX}-*.index")
            )
        ]
        numbers = [re.search(r"-(\d+)$", path) for path in paths]
        return max((int(n[1]) for n in numbers if n), default=0) + 1

    def _position(self) -> Tensor | None:
        """Returns the position in the data, `None` if none is saved."""
        if self._data is None:
            return None
        return checkpoint_data.position_of(
            self._data, os.path.join(self._directory, f"{_PREFIX}_position")
        )

    def _masters(self) -> list[Saved]:
        """Returns what is kept of 16-bit weights, in float32.

        Whatever the storage is, so that it can be another one.
        """
        with self._step.model.distribute_strategy.scope():
            return [
                Saved(
                    str(index),
                    tuple(master.weight.shape),
                    "float32",
                    [master.read()],
                )
                for index, master in state.masters_of(self._step).items()
                if master.variable is not None
            ]

    def _check_has_data(self, file: CheckpointFile) -> None:
        if self._data is not None and file.data is None:
            raise ValueError(
                "`data` must be left out for this checkpoint, because none was "
                "saved with it; make `mp.Checkpoint` without it to restore the "
                "rest. No variable was changed. Received: "
                f"{file.path!r}, data={self._data!r}"
            )


def _check_step(step: Any) -> None:
    if not isinstance(step, TrainStep):
        raise TypeError(
            "`step` must be a `mp.TrainStep`, because its model, optimizer and "
            "totals are what is saved; for others use `tf.train.Checkpoint`. "
            f"Received: step={step!r}"
        )
    strategy = step.model.distribute_strategy
    count = strategy.num_replicas_in_sync
    if count > 1 and count != len(strategy.extended.worker_devices):
        raise ValueError(
            "`mp.Checkpoint` must be used in one process, because it has the "
            "components of its own replicas only; on several workers use "
            f"`tf.train.Checkpoint`. Received: strategy={strategy!r}"
        )


def _checked_directory(directory: Any) -> str:
    directory = os.fspath(directory)
    if set(directory) & set("*?["):
        raise ValueError(
            "`directory` must not have *, ? or [ in its path, because "
            "TensorFlow takes it for a pattern when it reads; choose another "
            f"one. Received: directory={directory!r}"
        )
    return directory


def _check_max_to_keep(count: Any) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(
            "`max_to_keep` must be an int or None, because checkpoints are "
            f"counted. Received: max_to_keep={count!r}"
        )
    if count < 1:
        raise ValueError(
            "`max_to_keep` must be at least 1, because the one just saved is "
            f"kept; None keeps all. Received: max_to_keep={count!r}"
        )
