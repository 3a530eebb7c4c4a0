"""Checks of what masters are kept of, and how."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Variable
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.optimizers import distribution

_STORAGES = ("float32", "remainder", None)
_ROUNDINGS = ("nearest", "stochastic")


def check_backend() -> None:
    """Raises on another backend than TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`MasterWeightOptimizer` must be used with the TensorFlow backend "
            "of Keras, because it writes to variables in the step; on others "
            "keep variables in float32 (`mixed_bfloat16`). Received: the "
            f"backend {keras.backend.backend()!r}"
        )


def refuse_second_masters(inner_optimizer: Any) -> None:
    """Raises for an optimizer that keeps masters already."""
    raise ValueError(
        "`inner_optimizer` must not be a MasterWeightOptimizer, because "
        "there is one master of each weight. Received: "
        f"inner_optimizer={inner_optimizer}"
    )


def check_choices(storage: Any, rounding: Any) -> None:
    """Raises unless storage and rounding are known and go together."""
    if storage not in _STORAGES:
        raise ValueError(
            "`storage` must be 'float32', 'remainder' or None, because a "
            "master is a variable, or the 16 bits that a bfloat16 lacks, or "
            "not kept; 'float32' suits every model. Received: "
            f"storage={storage!r}"
        )
    if rounding not in _ROUNDINGS:
        raise ValueError(
            "`rounding` must be 'nearest' or 'stochastic', because a weight "
            "is rounded to either the nearest or one of two neighbours. "
            f"Received: rounding={rounding!r}"
        )
    if storage == "remainder" and rounding == "stochastic":
        raise ValueError(
            "`storage='remainder'` and `rounding='stochastic'` must not be "
            "combined, because 16 bits cannot say which neighbour was taken; "
            "use 'float32', or no masters at all: `storage=None` here, "
            "`master_weights=False` in `mp.wrap`. Received: both"
        )
    if storage is None and rounding == "nearest":
        raise ValueError(
            "Without masters `rounding` must be 'stochastic', because "
            "rounding to the nearest loses every update below half an ulp. "
            "Received: storage=None, rounding='nearest'"
        )


def check_is_alone() -> None:
    """Raises where gradients of several replicas would not be summed."""
    if distribution.is_distributed():
        raise ValueError(
            "Under a strategy `MasterWeightOptimizer` must be inside of a "
            "loss scale, because that sums gradients over replicas before "
            "the step; use `mp.wrap(optimizer)`, with `dynamic=False, "
            "initial_scale=1.0` to scale nothing. Received: a step of "
            "`MasterWeightOptimizer` by itself"
        )


def check_seed(seed: Any) -> None:
    """Raises unless it is an int of at least 0 and below 2**31."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(
            "`seed` must be an int, because random bits follow from it. "
            f"Received: seed={seed!r}"
        )
    if not 0 <= seed < 2**31:
        raise ValueError(
            "`seed` must be at least 0 and below 2**31, because TensorFlow's "
            f"seeds have that range here. Received: seed={seed!r}"
        )


def check_variables(
    narrow: Sequence[Variable], storage: str | None, rounding: str
) -> None:
    """Raises for a 16-bit variable that cannot have such masters."""
    for variable in narrow:
        if not isinstance(variable, keras.Variable):
            raise TypeError(
                "A 16-bit trainable variable must be a `keras.Variable`, "
                "because in a step it stands for its master; make it with "
                "`keras.Variable(value, dtype=...)`. Received: "
                f"{variable!r}"
            )
        if dtype_name(variable) == "float16" and (
            storage != "float32" or rounding != "nearest"
        ):
            raise ValueError(
                "With float16 variables `storage` must be 'float32' and "
                "`rounding` 'nearest', because only a bfloat16 is the "
                "upper half of a float32; use bfloat16, or the defaults. "
                f"Received: storage={storage!r}, "
                f"rounding={rounding!r} for the float16 variable "
                f"{variable.path}"
            )
