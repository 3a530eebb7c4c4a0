"""The private parts of Keras that a step traced apart needs.

All of them are here, and `tests/optimizers/test_keras_internals.py` fails when
Keras moves one.
"""

import contextlib
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Variable


def held_variable(variable: Variable) -> Any:
    """Returns the `tf.Variable` that a Keras variable holds, or itself."""
    if isinstance(variable, keras.Variable):
        return variable._value
    return variable


def key_of(optimizer: Any, variable: Variable) -> Any:
    """Returns what the optimizer knows a variable by."""
    return optimizer._var_key(variable)


def trainable_variables(optimizer: Any) -> list[Variable]:
    """Returns the variables that the optimizer was built with."""
    return list(updating(optimizer)._trainable_variables)


def has_branches(optimizer: Any) -> bool:
    """Returns whether the update has a branch, of which XLA makes copies."""
    return any(
        each.gradient_accumulation_steps
        or (each.use_ema and each.ema_overwrite_frequency)
        for each in _updating(optimizer)
    )


def global_clipnorm(optimizer: Any) -> float | None:
    """Returns the norm that one optimizer clips all its gradients to."""
    if len(_updating(optimizer)) > 1:
        return None
    return optimizer.global_clipnorm or None


def settings(optimizer: Any) -> Hashable:
    """Returns the Python numbers and the like that an update is traced with."""
    return tuple(
        (
            id(each._learning_rate),
            *(
                (name, value)
                for name, value in sorted(vars(each).items())
                if isinstance(value, (bool, int, float, str))
            ),
        )
        for each in _updating(optimizer)
    )


@contextlib.contextmanager
def holding(
    values: Mapping[int, Any], variables: Sequence[Variable]
) -> Iterator[None]:
    """Lets Keras variables hold other values for a while, in their dtypes.

    Args:
        values: By `id` of a variable, what it holds meanwhile.
        variables: Variables; those that are not Keras's are passed over.
    """
    variables = [v for v in variables if isinstance(v, keras.Variable)]
    held = [values[id(variable)] for variable in variables]
    dtypes = [keras.backend.standardize_dtype(value.dtype) for value in held]
    with (
        _replaced(variables, "_value", held),
        _replaced(variables, "_dtype", dtypes),
    ):
        yield


@contextlib.contextmanager
def seen_as(dtype: str, variables: Sequence[Variable]) -> Iterator[None]:
    """Lets Keras variables say that they have another dtype.

    Args:
        dtype: The dtype in which an optimizer then makes its slots.
        variables: Keras variables.
    """
    with _replaced(variables, "_dtype", [dtype] * len(variables)):
        yield


@contextlib.contextmanager
def knowing(values: Mapping[int, Any], optimizer: Any) -> Iterator[None]:
    """Lets an optimizer know other objects as its raw trainable variables.

    Args:
        values: By `id` of a `tf.Variable`, what stands for it meanwhile.
        optimizer: The optimizer that makes the update.
    """
    optimizers = _updating(optimizer)
    before = [each._trainable_variables for each in optimizers]
    try:
        for each, variables in zip(optimizers, before, strict=True):
            # Not by `setattr`, which would track the list as state.
            vars(each)["_trainable_variables"] = [
                v if isinstance(v, keras.Variable) else values[id(v)]
                for v in variables
            ]
        yield
    finally:
        for each, variables in zip(optimizers, before, strict=True):
            vars(each)["_trainable_variables"] = variables


@contextlib.contextmanager
def clipping_by(optimizer: Any, norm: Any) -> Iterator[None]:
    """Lets an optimizer clip to `global_clipnorm` by a norm that is known.

    Args:
        optimizer: The optimizer that makes the update.
        norm: Scalar float32 tensor: the global norm of its gradients.
    """
    (optimizer,) = _updating(optimizer)
    limit = optimizer.global_clipnorm

    def clip(gradients: Sequence[Any]) -> list[Any]:
        # In the order in which Keras computes the factor.
        factor = limit * keras.ops.minimum(1.0 / norm, 1.0 / limit)
        return [g if g is None else g * factor for g in gradients]

    # Not by `setattr`: Keras would look for state in it.
    vars(optimizer)["_clip_gradients"] = clip
    try:
        yield
    finally:
        del vars(optimizer)["_clip_gradients"]


@contextlib.contextmanager
def without_distribution(optimizer: Any, strategy: Any) -> Iterator[None]:
    """Lets an optimizer update its variables as if there was one device.

    Args:
        optimizer: The optimizer that makes the update.
        strategy: The default strategy of TensorFlow.
    """
    optimizers = _updating(optimizer)
    strategies = [strategy] * len(optimizers)
    with _replaced(optimizers, "_distribution_strategy", strategies):
        yield


def updating(optimizer: Any) -> Any:
    """Returns the optimizer that makes the update, out of its wrappers."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def moving_averages(optimizer: Any) -> dict[Any, Variable]:
    """Returns the moving averages of weights, by what these are known by."""
    return {
        key_of(each, variable): average
        for each in _updating(optimizer)
        if each.use_ema
        for variable, average in zip(
            each._trainable_variables,
            each._model_variables_moving_average,
            strict=True,
        )
        if average is not None
    }


def _updating(optimizer: Any) -> list[Any]:
    """Returns the optimizer and those that a `MultiOptimizer` has in it."""
    optimizer = updating(optimizer)
    return [optimizer, *getattr(optimizer, "optimizers", ())]


@contextlib.contextmanager
def _replaced(
    objects: Sequence[Any], name: str, values: Sequence[Any]
) -> Iterator[None]:
    """Gives an attribute of each object another value for a while."""
    before = [getattr(each, name) for each in objects]
    try:
        for each, value in zip(objects, values, strict=True):
            setattr(each, name, value)
        yield
    finally:
        for each, value in zip(objects, before, strict=True):
            setattr(each, name, value)
