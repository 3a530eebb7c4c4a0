"""What an audit says of each layer: a row of its table."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.diagnostics.audit.ops import OpFacts
from tf_mixprec.diagnostics.tapped_layers import TappedLayer
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.layers.float32_inside import PolicyOutside
from tf_mixprec.layers.twins import TWINS
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import kinds
from tf_mixprec.policies.policy import policy_text

MODEL_PATH = "(model)"  # what operations of the model's own code are listed as


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditedLayer:
    """What a layer computes in, and what that costs.

    Args:
        path: The names of the models around it and its own, joined by `/`;
            `"(model)"` for the code of the model itself.
        layer_class: The name of its class.
        kind: What it does; one of `mp.rules.KINDS`, or `"operation"`.
        policy: Its policy, as a string; empty for an operation.
        compute_dtype: The dtype it computes in; empty for an operation.
        variable_dtype: The dtype of its variables; empty without any.
        parameters: The numbers in its variables, without those of layers
            inside that have a row.
        multiply_adds: Of matrix products and convolutions, for an example;
            `None` if not known.
        casts: How many casts between 16 bits and other floats it makes in a
            call of the model; `None` if not known.
        cast_bytes: What those of activations read and write, for an example.
        weight_cast_bytes: What those of variables read and write, in a call.
        calls: How often it is called in a call of the model.
    """

    path: str
    layer_class: str
    kind: str
    policy: str
    compute_dtype: str
    variable_dtype: str
    parameters: int
    multiply_adds: float | None = None
    casts: int | None = None
    cast_bytes: float | None = None
    weight_cast_bytes: int | None = None
    calls: int | None = None


def layers_of(model: Any) -> list[TappedLayer]:
    """Returns what an audit looks at, the model first.

    Args:
        model: The model.
    """
    return tapped_layers(model)


def shown_path(path: str) -> str:
    """Returns a path as it is shown."""
    return path or MODEL_PATH


def audited_layers(
    layers: Sequence[TappedLayer],
    facts: OpFacts | None,
    calls: dict[str, int],
    batch_size: int,
) -> tuple[AuditedLayer, ...]:
    """Returns a row for each layer; for the model only if it does something.

    Args:
        layers: What is looked at.
        facts: What the operations are; `None` if the model was not traced.
        calls: By path, how often each is called.
        batch_size: The examples in a call.
    """
    rows = []
    for each in layers:
        row = _row(each, own_variables(each, layers))
        if facts is not None:
            row = _with_costs(row, each.path, facts, batch_size)
            row = dataclasses.replace(row, calls=calls.get(each.path, 0))
        does_something = row.parameters or row.multiply_adds or row.casts
        if each.path or does_something:
            rows.append(row)
    return tuple(rows)


def _row(each: TappedLayer, variables: list[Any]) -> AuditedLayer:
    layer = each.layer
    is_layer = isinstance(layer, keras.Layer)
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in variables}
    return AuditedLayer(
        path=shown_path(each.path),
        layer_class=_class_text(type(layer)),
        kind=kinds.kind_of(layer) if is_layer else "operation",
        policy=policy_text(layer.dtype_policy) if is_layer else "",
        compute_dtype=each.compute_dtype,
        variable_dtype=", ".join(sorted(dtypes)),
        parameters=sum(_count(v) for v in variables),
    )


def _count(variable: Any) -> int:
    result = 1
    for size in variable.shape:
        result *= size
    return result


def own_variables(
    each: TappedLayer, layers: Sequence[TappedLayer]
) -> list[Any]:
    """Returns the variables of a layer that no layer with a row inside has."""
    weights = getattr(each.layer, "weights", None) or []
    inner = {
        id(variable)
        for other in layers
        if other.path.startswith(f"{each.path}/" if each.path else "")
        and other is not each
        for variable in getattr(other.layer, "weights", ())
    }
    return [v for v in weights if id(v) not in inner]


def _with_costs(
    row: AuditedLayer, path: str, facts: OpFacts, batch_size: int
) -> AuditedLayer:
    products = [each for each in facts.products if each.path == path]
    casts = [each for each in facts.casts if each.path == path]
    activations = [each.bytes for each in casts if not each.of_weight]
    weights = [each.bytes for each in casts if each.of_weight]
    bytes_ = total(activations)
    multiply_adds = total(each.multiply_adds for each in products)
    return dataclasses.replace(
        row,
        multiply_adds=per_example(multiply_adds, batch_size),
        casts=len(casts),
        cast_bytes=per_example(bytes_, batch_size),
        weight_cast_bytes=total(weights),
    )


def counted(number: int, noun: str) -> str:
    """Returns a number of things.

    Example:

    >>> counted(1, "layer"), counted(2, "layer")
    ('1 layer', '2 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def total(values: Iterable[int | None]) -> int | None:
    """Returns a sum; `None` if a value is not known."""
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)


def per_example(value: int | None, batch_size: int) -> float | None:
    """Returns a share of a batch; `None` if the value is not known."""
    return None if value is None else value / batch_size


def is_narrow(layer: Any) -> bool:
    """Returns whether a layer works in 16 bits: its policy, and its inside."""
    return (
        isinstance(layer, keras.Layer)
        and not isinstance(layer, keras.layers.InputLayer)
        and not isinstance(layer, PolicyOutside)
        and has_16_bits(layer.compute_dtype)
    )


def _class_text(layer_class: type) -> str:
    prefix = "mp.layers." if layer_class in TWINS.values() else ""
    return prefix + layer_class.__name__
