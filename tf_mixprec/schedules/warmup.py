"""A learning rate that starts small."""

from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from tf_mixprec._typing import Tensor


@keras.saving.register_keras_serializable(package="tf_mixprec")
class Warmup(LearningRateSchedule):
    """Rises linearly to a learning rate, and then follows a schedule.

    ```text
    step < steps:   schedule(0) * (step + 1) / steps
    then:           schedule(step - steps)
    ```

    Under `mp.wrap` a step that is skipped is no step: the overflows with which
    a dynamic loss scale finds its way at the start do not use up the warm-up.

    Args:
        schedule: Float, the learning rate, or a
            `keras.optimizers.schedules.LearningRateSchedule`.
        steps: Int, at least 1: how many steps it takes, in optimizer steps.
        name: String. Defaults to `"Warmup"`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `steps` is below 1, or a learning rate negative.

    Example:

    >>> import tf_mixprec as mp
    >>> schedule = mp.schedules.Warmup(0.5, steps=4)
    >>> [float(schedule(step)) for step in range(6)]
    [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]

    Reference:
        - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), section 2.2
    """

    def __init__(
        self,
        schedule: float | LearningRateSchedule,
        steps: int,
        name: str = "Warmup",
    ):
        super().__init__()
        if isinstance(schedule, bool) or not isinstance(
            schedule, (int, float, LearningRateSchedule)
        ):
            raise TypeError(
                "`schedule` must be a float or a `LearningRateSchedule`, "
                "because it is what the warm-up leads to. Received: "
                f"schedule={schedule!r}"
            )
        if not isinstance(schedule, LearningRateSchedule) and not (
            0 <= schedule < float("inf")
        ):
            raise ValueError(
                "`schedule` must not be negative, and finite, because it is a "
                f"learning rate. Received: schedule={schedule!r}"
            )
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(
                "`steps` must be an int, because optimizer steps are counted. "
                f"Received: steps={steps!r}"
            )
        if steps < 1:
            raise ValueError(
                "`steps` must be at least 1, because the learning rate rises "
                "over that many steps; without a warm-up, give the schedule "
                f"itself. Received: steps={steps!r}"
            )
        self.schedule = schedule
        self.steps = steps
        self.name = name

    def __call__(self, step: Tensor) -> Tensor:
        """Returns the learning rate of a step, a scalar float32 tensor.

        Args:
            step: Scalar int: the steps made before it.
        """
        # Not in float32, which has no 2**24 + 1.
        step = ops.cast(step, "int64")
        share = ops.cast(ops.minimum(step + 1, self.steps), "float32")
        after = ops.maximum(step - self.steps, 0)
        return self._follows(after) * (share / float(self.steps))

    def _follows(self, step: Tensor) -> Tensor:
        if isinstance(self.schedule, LearningRateSchedule):
            return ops.cast(self.schedule(step), "float32")
        return ops.cast(self.schedule, "float32")

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, in JSON types."""
        schedule = self.schedule
        if isinstance(schedule, LearningRateSchedule):
            schedule = keras.saving.serialize_keras_object(schedule)
        return {"schedule": schedule, "steps": self.steps, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Warmup":
        """Returns the schedule that a config describes."""
        config = dict(config)
        if isinstance(config["schedule"], dict):
            config["schedule"] = keras.saving.deserialize_keras_object(
                config["schedule"]
            )
        return cls(**config)
