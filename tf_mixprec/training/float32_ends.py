"""Float32 where a model ends: losses and metrics.

Two methods of the model are set on the instance. A subclass made on the fly
would change what is saved and what `clone_model` builds; wrapped metrics would
not be the objects and names that were given.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tf_mixprec.layers.float32_inside import widened_tensors
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import covered
from tf_mixprec.training.instance_methods import set_method


def compute_in_float32(model: Any) -> None:
    """Makes losses and metrics of a model get float32.

    Predictions in 16 bits are cast before `compute_loss` and `compute_metrics`,
    and so are the losses that layers add, before they are summed. Those in
    float32 or float64 stay as they are.
    """
    set_method(model, "compute_metrics", _with_wide_predictions)
    set_method(
        model,
        "compute_loss",
        lambda method: _with_wide_losses(model, _with_wide_predictions(method)),
    )


@contextlib.contextmanager
def outputs_in_float32(model: Any, *, training: bool) -> Iterator[None]:
    """Makes a model return float32 in the place of 16 bits, in a block.

    For losses that users compute of its outputs.

    Args:
        model: The model.
        training: How it is called where `training` is not given.
    """

    def wide(_: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        takes_training = "training" in inspect.signature(call).parameters

        @functools.wraps(call)
        def wide_call(*args: Any, **kwargs: Any) -> Any:
            if takes_training and kwargs.get("training") is None:
                kwargs["training"] = training
            return _widened(call(*args, **kwargs))

        return wide_call

    with covered([model], "call", wide):
        yield


def _with_wide_predictions(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method with its argument `y_pred`, the third, widened."""

    def with_wide_predictions(*args: Any, **kwargs: Any) -> Any:
        if "y_pred" in kwargs:
            kwargs["y_pred"] = _widened(kwargs["y_pred"])
        else:
            args = (*args[:2], *map(_widened, args[2:3]), *args[3:])
        return method(*args, **kwargs)

    return with_wide_predictions


def _with_wide_losses(
    model: Any, method: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns the method with `model.losses` widened while it runs."""

    def with_wide_losses(*args: Any, **kwargs: Any) -> Any:
        losses = model.losses
        widened = [_widened(loss) for loss in losses]
        if all(a is b for a, b in zip(losses, widened, strict=True)):
            return method(*args, **kwargs)
        with keras_internals.losses_replaced(model, widened):
            return method(*args, **kwargs)

    return with_wide_losses


def _widened(structure: Any) -> Any:
    return widened_tensors(structure, "float32")
