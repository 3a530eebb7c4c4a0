"""What is to become of each layer of a model."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.conversion.container_policy import ContainerPolicy
from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.conversion.heads import heads
from tf_mixprec.layers.keras_internals import sublayers
from tf_mixprec.layers.precision import Precision
from tf_mixprec.layers.twins import FASTER
from tf_mixprec.layers.twins import TWINS
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import kinds
from tf_mixprec.policies import precision_rules as rule_words
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.policy import keras_policy
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.precision_rules import Rule

_KERAS_CLASSES = {
    ours: keras_class for keras_class, ours in [*TWINS.items(), *FASTER.items()]
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to become of one layer.

    Args:
        path: The names of the models around it and its own, joined by `/`.
        layer: The layer.
        kind: What it does.
        rules: The rules that match; the first one decides.
        policy: Its new policy; `None` to leave it alone.
        layer_class: Its new class.
        fallback: The policy for a layer whose class cannot be changed.
    """

    path: str
    layer: Any
    kind: str
    rules: tuple[Rule, ...] = ()
    policy: keras.DTypePolicy | None = None
    layer_class: type
    fallback: keras.DTypePolicy | None = None


def decisions(
    model: Any, rules: PrecisionRules, target: Policy, variables: str | None
) -> dict[int, Decision]:
    """Returns, by `id`, the decision on each layer that has one of its own.

    Layers inside of a layer of Keras's (the cell of an LSTM, the projections of
    an attention layer) are part of it, and have none.

    Args:
        model: The model.
        rules: The rules.
        target: The target policy.
        variables: The dtype for all variables; `None` for what policies say.
    """
    result: dict[int, Decision] = {}
    keeps = (Precision,) if has_16_bits(target.compute_dtype) else ()
    for path, layer, is_output in _walk(model, "", True, keeps):
        if id(layer) in result:  # a shared layer: its first place counts
            continue
        kind = kinds.kind_of(layer, is_output=is_output)
        result[id(layer)] = _decision(
            path, layer, kind, rules, target, variables
        )
    return result


def _walk(
    layer: Any, path: str, is_output: bool, keeps: tuple[type, ...]
) -> Iterator[tuple[str, Any, bool]]:
    """Yields path, layer, and whether its output is the model's.

    Args:
        layer: Where to start.
        path: Its path.
        is_output: Whether its output is the model's.
        keeps: Classes that decide themselves on what is inside.
    """
    yield path, layer, is_output
    if isinstance(layer, keeps):
        return
    inner = heads(layer) if is_output else set()
    for child in own_children(layer):
        child_path = f"{path}/{child.name}".lstrip("/")
        yield from _walk(child, child_path, id(child) in inner, keeps)


def own_children(layer: Any) -> list[Any]:
    """Returns the layers inside that have a policy of their own."""
    if isinstance(layer, keras.Model) or not kinds.is_keras_own(layer):
        if type(layer) in _KERAS_CLASSES:
            return []
        return sublayers(layer)
    # A wrapper of Keras's around a model only passes on.
    wrapped = getattr(layer, "layer", None)
    return [wrapped] if isinstance(wrapped, keras.Model) else []


def _decision(
    path: str,
    layer: Any,
    kind: str,
    rules: PrecisionRules,
    target: Policy,
    variables: str | None,
) -> Decision:
    own_class = _KERAS_CLASSES.get(type(layer), type(layer))
    facts = {"path": path, "layer": layer, "kind": kind}
    if kind in ("untouched", "quantized"):
        return Decision(**facts, layer_class=type(layer))
    if kind == "model":
        policy = _model_policy(layer, target, is_whole=not path)
        return Decision(
            **facts, policy=policy, layer_class=type(layer), fallback=policy
        )
    matching = tuple(rules.matching(path, layer, kind))
    word = matching[0].policy if matching else rule_words.TARGET
    inside = word == rule_words.FLOAT32_INSIDE and has_16_bits(
        target.compute_dtype
    )
    layer_class = TWINS.get(own_class, own_class) if inside else own_class
    fallback = _policy(word, target, variables)
    policy = fallback
    if has_16_bits(policy.compute_dtype):
        layer_class = FASTER.get(own_class, layer_class)
    elif layer_class is not own_class:
        policy = _twin_policy(kind, target, variables)
    return Decision(
        **facts,
        rules=matching,
        policy=policy,
        layer_class=layer_class,
        fallback=fallback,
    )


def _model_policy(
    model: Any, target: Policy, *, is_whole: bool
) -> keras.DTypePolicy:
    """Returns the policy of what is around layers.

    Code between the layers of a subclassed model may count on inputs in the
    compute dtype, and on no float32 head: such a model casts at both ends,
    unless a layer inside needs its inputs as they are.
    """
    if not has_16_bits(target.compute_dtype):
        return keras_policy(target)
    if has_graph(model):
        return ContainerPolicy(target)
    ends = Policy(target, output_dtype="float32" if is_whole else None)
    inside = {kinds.kind_of(layer) for layer in own_children(model)}
    if inside & {"embedding", "preprocessing"}:
        return ContainerPolicy(ends)
    return ends


def _policy(
    word: str, target: Policy, variables: str | None
) -> keras.DTypePolicy:
    """Returns the policy that a rule's word stands for."""
    if word == rule_words.TARGET or (
        word == rule_words.FLOAT32_INSIDE
        and not has_16_bits(target.compute_dtype)
    ):
        policy = target
    elif word == rule_words.FLOAT32_INSIDE:
        policy = Policy("float32", "float32", target.output_dtype)
    else:
        policy = Policy(word)
    return keras_policy(Policy(policy, variables))


def _twin_policy(
    kind: str, target: Policy, variables: str | None
) -> keras.DTypePolicy:
    """Returns the policy of a layer of ours that is float32 inside."""
    if kind == "normalization" and variables is None:
        # Moving averages that move by less than an ulp would stand still.
        variables = "float32"
    return keras_policy(Policy(target, variables))
