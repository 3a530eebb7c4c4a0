"""Fields of a record as strict JSON, which has no inf and no nan."""

import json
import math
import numbers
from collections.abc import Mapping
from collections.abc import Set
from typing import Any

import numpy as np


def rendered(fields: Mapping[str, Any]) -> str:
    """Returns fields as JSON.

    Args:
        fields: Values are mappings, sequences, sets, numbers, strings, bools
            and `None`, of NumPy as well; anything else is printed.

    Example:

    >>> print(rendered({"scale": float("inf"), "steps": (1, 2)}))
    {
      "scale": "inf",
      "steps": [
        1,
        2
      ]
    }
    """
    return json.dumps(_plain(fields), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Returns a value in the types of JSON."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {_key(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, Set)):
        return [_plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_numpy(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return _float(float(value))
    return str(value)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else str(_plain(name))


def _of_numpy(value: Any) -> Any:
    plain = value.tolist()
    # Those of `ml_dtypes` stay what they are.
    if isinstance(plain, np.generic):
        return _float(float(plain))
    return _plain(plain)


def _float(value: float) -> Any:
    return value if math.isfinite(value) else str(value)
