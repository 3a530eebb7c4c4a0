"""Strings for policies: Keras's names and jmp's notation."""

from typing import Any

import keras

# Compute, variable and output dtype.
Dtypes = tuple[str, str, str | None]

# jmp's abbreviations. There `half` is float16 on GPUs and bfloat16 on TPUs,
# which are not supported here.
_SHORT = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "full": "float32",
    "half": "float16",
}
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_MIXED = {
    "mixed_bfloat16": "bfloat16",
    "mixed_float16": "float16",
}
_KEYS = {
    "c": "compute",
    "compute": "compute",
    "o": "output",
    "output": "output",
    "p": "params",
    "params": "params",
}


def parse(policy: Any) -> Dtypes:
    """Returns the dtypes that a string or a policy stands for.

    Args:
        policy: A string, or a `keras.DTypePolicy`.
    """
    if isinstance(policy, keras.DTypePolicy):
        output = getattr(policy, "_output_dtype", None)
        return policy.compute_dtype, policy.variable_dtype, output
    if isinstance(policy, str):
        if policy in _MIXED:
            return _MIXED[policy], "float32", None
        if "=" in policy:
            return _parse_pairs(policy)
    dtype = _SHORT.get(policy, policy) if isinstance(policy, str) else policy
    if dtype not in _FLOATS:
        kind = ValueError if isinstance(policy, str) else TypeError
        raise kind(
            "A policy must be a float dtype "
            f"({', '.join(_FLOATS)}), one of {', '.join(_MIXED)}, a "
            "`keras.DTypePolicy`, or like 'params=float32,compute=float16,"
            "output=float32', because layers cast floating-point numbers "
            f"only; integers stay as they are. Received: {policy!r}"
        )
    return dtype, dtype, None


def _parse_pairs(policy: str) -> Dtypes:
    """Parses `params=...,compute=...,output=...`, in any order."""
    dtypes: dict[str, str] = {}
    for pair in policy.split(","):
        name, _, dtype = (part.strip() for part in pair.partition("="))
        key = _KEYS.get(name)
        if key is None or key in dtypes:
            raise ValueError(
                "A policy must give `params`, `compute` and `output` once "
                "each, because a misspelt part would be ignored; write "
                "'params=float32,compute=float16,output=float32'. Received: "
                f"compute_dtype={policy!r}"
            )
        dtypes[key] = float_dtype(dtype, name)
    if "compute" not in dtypes:
        raise ValueError(
            "A policy must say `compute=`, because parameters and outputs "
            "follow it where they are not given. Received: "
            f"compute_dtype={policy!r}"
        )
    return (
        dtypes["compute"],
        dtypes.get("params", dtypes["compute"]),
        dtypes.get("output"),
    )


def float_dtype(dtype: Any, argument: str) -> str:
    """Returns the name of a floating-point dtype.

    Args:
        dtype: The name, or an abbreviation of it.
        argument: What to call it in the error.
    """
    if not isinstance(dtype, str):
        raise TypeError(
            f"`{argument}` must be the name of a dtype, such as 'float16', "
            "because it is saved with the model. Received: "
            f"{argument}={dtype!r}"
        )
    name = _SHORT.get(dtype, dtype)
    if name not in _FLOATS:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(_FLOATS)}, because layers "
            "cast floating-point numbers only; integers stay as they are. "
            f"Received: {argument}={dtype!r}"
        )
    return name


def keras_name(compute: str, variable: str) -> str:
    """Returns the name that Keras knows this pair by, as far as it has one."""
    if compute == variable:
        return compute
    mixed = f"mixed_{compute}"
    if mixed in _MIXED and variable == "float32":
        return mixed
    return f"params={variable},compute={compute}"
