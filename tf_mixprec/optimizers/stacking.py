"""Whether masters of 16-bit variables go under the loss scale."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Variable
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import in_16_bits
from tf_mixprec.numerics.epsilon import is_zero_in
from tf_mixprec.optimizers.master_weight_optimizer import MasterWeightOptimizer


def check_choice(master_weights: Any) -> None:
    """Raises unless this is True, False or "auto"."""
    if isinstance(master_weights, bool) or master_weights == "auto":
        return
    raise ValueError(
        "`master_weights` must be True, False or 'auto', because it says "
        "whether 16-bit variables get float32 masters; how these are kept, "
        "`storage` says. Received: "
        f"master_weights={master_weights!r}"
    )


def will_stack(master_weights: bool | str) -> bool:
    """Returns whether 16-bit variables will get masters."""
    return master_weights is not False and (
        keras.backend.backend() == "tensorflow"
    )


def with_masters(
    optimizer: Any, master_weights: bool | str, variables: Sequence[Variable]
) -> Any:
    """Returns the optimizer, with masters around it where they are due.

    Args:
        optimizer: The optimizer that makes the update.
        master_weights: True, False, or `"auto"`: if a variable has 16 bits.
        variables: What it is to update.
    """
    if isinstance(optimizer, MasterWeightOptimizer):
        return optimizer
    narrow = in_16_bits(variables)
    if master_weights is False:
        _check_epsilon(optimizer, narrow)
        return optimizer
    if master_weights == "auto":
        if not narrow or not will_stack(master_weights):
            return optimizer
        if optimizer.built:
            _warn_that_it_is_too_late(narrow[0])
            return optimizer
    return MasterWeightOptimizer(optimizer)


def _check_epsilon(optimizer: Any, narrow: Sequence[Variable]) -> None:
    """Raises for an epsilon that a variable's dtype does not hold."""
    epsilon = getattr(optimizer, "epsilon", None)
    if not isinstance(epsilon, (int, float)) or epsilon == 0:
        return
    for variable in narrow:
        dtype = dtype_name(variable)
        if is_zero_in(dtype, epsilon):
            raise ValueError(
                "`epsilon` must not be 0 in the dtype of the variables, "
                "because the update divides by it where a gradient is 0; "
                "leave out `master_weights=False`, so that the update is made "
                "in float32, or give the optimizer a larger `epsilon` "
                f"({dtype} holds 1e-4). Received: epsilon={epsilon!r} for the "
                f"{dtype} variable {variable.path}"
            )


def _warn_that_it_is_too_late(variable: Variable) -> None:
    warnings.warn(
        f"The optimizer was built for {dtype_name(variable)} variables before "
        "it was wrapped, so it has 16-bit slots and no float32 masters, and "
        "updates below half an ulp of a weight are lost. Wrap it before it is "
        "built.",
        LossScaleWarning,
        stacklevel=4,
    )
