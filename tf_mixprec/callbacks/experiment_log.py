"""What a run was, and how it went, as lines of JSON."""

import datetime
import json
import pathlib
import time
from typing import Any

import keras

from tf_mixprec.callbacks import experiment_facts
from tf_mixprec.callbacks.arguments import checked_file
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.reports import json_text


class ExperimentLog(keras.callbacks.Callback):
    """Writes one line of JSON for each epoch, and one for the start of a run.

    ```text
    {"start": {"time", "machine", "versions", "model", "policies", "optimizer",
               "jit_compile", "epochs", "steps"}}
    {"epoch", "logs", "loss_scale", "skipped_steps", "skip_rate",
     "learning_rate", "examples_per_second", "seconds", "time"}
    ```

    `logs` are all logs of the epoch that callbacks before this one have made:
    put it last. `skipped_steps` are of the epoch, and `skip_rate` is their
    share of its steps. Both and the loss scale are null for an optimizer that
    is not an `mp.LossScaleOptimizer`. `seconds` are those of training and
    validation, and `examples_per_second` the examples that count in the loss
    by the seconds of training alone; null for a model that does not count them.

    Each line is written when it is there, so a run that is killed leaves whole
    lines; a run that is resumed appends a start and its epochs. JSON has no inf
    and no nan: they are the strings `"inf"`, `"-inf"` and `"nan"`. The device
    is asked once an epoch. Of several workers the chief writes.

    Args:
        path: Where to append; folders are made.

    Raises:
        TypeError: If `path` is no path.
        ValueError: If it is a directory.

    Example:

    ```python
    log = mp.callbacks.ExperimentLog("runs/first.jsonl")
    model.fit(x, y, validation_data=data, epochs=3, callbacks=[log])
    ```
    """

    def __init__(self, path: str | pathlib.Path):
        super().__init__()
        self._path = checked_file("path", path)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._skipped_before = self._skipped_steps()
        self._append(
            {
                "start": {
                    "time": _now(),
                    "machine": experiment_facts.machine(),
                    "versions": experiment_facts.versions(),
                    **experiment_facts.of_model(self.model),
                    "epochs": self.params.get("epochs"),
                    "steps": self.params.get("steps"),
                }
            }
        )

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._steps = 0
        self._examples: float | None = None
        self._train_seconds: float | None = None
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Of the validation, which starts the metrics anew.
        if hasattr(self, "_start") and self._train_seconds is None:
            self._end_training()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._train_seconds is None:
            self._end_training()
        skipped = self._skipped_steps()
        record = {
            "epoch": epoch,
            "logs": dict(logs or {}),
            "loss_scale": self._loss_scale(),
            **self._skips(skipped),
            "learning_rate": experiment_facts.learning_rate(self.model),
            "examples_per_second": self._examples_per_second(),
            "seconds": time.perf_counter() - self._start,
            "time": _now(),
        }
        self._skipped_before = skipped
        self._append(record)

    def _end_training(self) -> None:
        # Asked first, since this waits for the last step.
        self._examples = experiment_facts.examples_so_far(self.model)
        self._train_seconds = time.perf_counter() - self._start

    def _examples_per_second(self) -> float | None:
        if self._examples is None or not self._train_seconds:
            return None
        return self._examples / self._train_seconds

    def _skips(self, skipped: int | None) -> dict[str, Any]:
        """Returns what there is to say of the skipped steps of the epoch."""
        if skipped is None or self._skipped_before is None:
            return {"skipped_steps": None, "skip_rate": None}
        of_epoch = skipped - self._skipped_before
        rate = of_epoch / self._steps if self._steps else None
        return {"skipped_steps": of_epoch, "skip_rate": rate}

    def _skipped_steps(self) -> int | None:
        optimizer = self.model.optimizer
        if not isinstance(optimizer, LossScaleOptimizer):
            return None
        return int(keras.ops.convert_to_numpy(optimizer.skipped_steps))

    def _loss_scale(self) -> float | None:
        optimizer = self.model.optimizer
        if not isinstance(optimizer, LossScaleOptimizer):
            return None
        return float(keras.ops.convert_to_numpy(optimizer.loss_scale))

    def _append(self, record: dict[str, Any]) -> None:
        # Whatever all workers must ask for together is asked for by now.
        if not experiment_facts.is_chief(self.model):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(json.loads(json_text.rendered(record)))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat()
