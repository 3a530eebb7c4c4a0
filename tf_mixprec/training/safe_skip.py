"""A skipped step of `fit` that leaves no trace.

The optimizer protects weights and slots. By then the forward pass has moved the
statistics of batch normalization, and the batch's loss and metrics are counted:
one nan among them, and both are nan to the end. So a step first notes what it
is about to change, and puts it back where the optimizer has skipped the step.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import original_method
from tf_mixprec.training.instance_methods import set_method
from tf_mixprec.training.instance_methods import unset_method
from tf_mixprec.training.recompiling import is_of_keras
from tf_mixprec.training.snapshot import Snapshot


def leave_no_trace(model: Any) -> None:
    """Makes skipped steps of a model leave no trace.

    Moving statistics, other non-trainable weights, the loss and the metrics are
    as they were before the step; seeds of random layers go on. It is decided
    on the device, without a branch.

    Args:
        model: A model that is compiled with `LossScaleOptimizer`s.

    Raises:
        ValueError: On another backend than TensorFlow, or with no such
            optimizer.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`safe_skip=True` must be used with the TensorFlow backend of "
            "Keras, because it works on variables in `train_step`. Received: "
            f"the backend {keras.backend.backend()!r}"
        )
    optimizers = _optimizers(model)
    if not optimizers or not all(o.skip_nonfinite for o in optimizers):
        raise ValueError(
            "`safe_skip=True` must be used with optimizers of `mp.wrap` in "
            "attributes of the model, without `skip_nonfinite=False`, because "
            "they skip steps and say so. Received: "
            f"model.optimizer={model.optimizer!r}, with "
            f"skip_nonfinite={[o.skip_nonfinite for o in optimizers]}"
        )
    set_method(model, "train_step", lambda method: _traceless(model, method))
    if is_of_keras(model, "train_step"):  # another may count as it likes
        set_method(
            model,
            "get_metrics_result",
            lambda method: _of_some_step(model, method),
        )


def leave_traces(model: Any) -> None:
    """Gives a model back its own `train_step`."""
    unset_method(model, "train_step")
    unset_method(model, "get_metrics_result")


def skips_safely(model: Any) -> bool:
    """Returns whether skipped steps of a model leave no trace.

    Args:
        model: A model, compiled or not.
    """
    optimizers = _optimizers(model)
    return (
        model.train_step != original_method(model, "train_step")
        and bool(optimizers)
        and all(each.skip_nonfinite for each in optimizers)
    )


def _of_some_step(
    model: Any, get_metrics_result: Callable[[], dict[str, Any]]
) -> Callable[[], dict[str, Any]]:
    """Returns the method that gives nan where every step was skipped.

    In the logs of an epoch, where a loss of 0 would be the best of all. In a
    batch's logs it is 0: `TerminateOnNaN` need not know of a skipped step.
    """

    def result_of_some_step() -> dict[str, Any]:
        result = get_metrics_result()
        if keras_internals.has_counted(model):
            return result
        return {name: float("nan") for name in result}

    return result_of_some_step


def _traceless(
    model: Any, train_step: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Returns the `train_step` that puts back what a skipped step changed."""

    def traceless_train_step(data: Any) -> Any:
        if not _optimizers(model):  # compiled anew, by Keras
            return train_step(data)
        keras_internals.build_metrics(model, data)
        snapshot = Snapshot(model)
        train_step(data)
        snapshot.put_back(_skipped(model))
        # Of this batch, so not nan: eager code sees that there is no loss yet.
        return original_method(model, "get_metrics_result")()

    return traceless_train_step


def _skipped(model: Any) -> Tensor:
    """Returns whether an optimizer of the model has skipped the step."""
    first, *others = (each.found_inf for each in _optimizers(model))
    return functools.reduce(ops.logical_or, others, ops.cast(first, "bool"))


def _optimizers(model: Any) -> list[LossScaleOptimizer]:
    """Returns the optimizers that a model has in its attributes."""
    found = {
        id(value): value
        for value in [model.optimizer, *vars(model).values()]
        if isinstance(value, LossScaleOptimizer)
    }
    return list(found.values())
