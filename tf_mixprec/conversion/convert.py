"""Converts a model to another precision."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec.conversion import keras_internals
from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.conversion.plan import Decision
from tf_mixprec.conversion.plan import decisions
from tf_mixprec.conversion.rebuild import CannotRebuildError
from tf_mixprec.conversion.rebuild import pairs
from tf_mixprec.conversion.rebuild import rebuilt
from tf_mixprec.conversion.rebuild import set_policy
from tf_mixprec.conversion.report import ConversionReport
from tf_mixprec.conversion.report import ConvertedLayer
from tf_mixprec.errors import ConversionWarning
from tf_mixprec.layers.twins import TWINS
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import precision_rules as rule_words
from tf_mixprec.policies import rules as rule_sets
from tf_mixprec.policies.notation import float_dtype
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.policy import keras_policy
from tf_mixprec.policies.policy import policy_text
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.recommendation import Recommendation
from tf_mixprec.policies.recommendation import recommended_policy


def convert(
    model: keras.Model,
    policy_or_rules: Any = "auto",
    *,
    variables: str | None = None,
    return_report: bool = False,
) -> Any:
    """Returns a new model with the same weights and another precision.

    Functional, `Sequential` and nested models, with shared layers and any
    number of inputs and outputs, and subclassed models that can be made from
    their config. Where that fails, the model itself is changed, with a
    `ConversionWarning`. The new model is not compiled. Back to `"float32"`
    gives Keras's own layers, the same weights and the same bits.

    Args:
        model: The model; it is not changed if a copy can be built.
        policy_or_rules: A policy (`"mixed_float16"`, anything that `mp.Policy`
            takes), applied by `mp.rules.SAFE`; or `mp.PrecisionRules`, which
            name their own. Defaults to `"auto"`: what `mp.recommended_policy`
            says of the device.
        variables: The dtype of all variables. Defaults to what the policies
            say.
        return_report: Whether to return `(model, report)`. Printed, the
            `ConversionReport` is a table of layers.

    Raises:
        TypeError: If `model` is no Keras model.
        ValueError: If a copy cannot be built and the model itself cannot be
            changed either, since its variables have another dtype.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((4,)),
    ...         keras.layers.Dense(8),
    ...         keras.layers.LayerNormalization(),
    ...         keras.layers.Dense(2),
    ...     ]
    ... )
    >>> mixed = mp.convert(model, "mixed_bfloat16")
    >>> [layer.compute_dtype for layer in mixed.layers]
    ['bfloat16', 'float32', 'float32']
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`, because layers are converted "
            "together with what surrounds them; give single layers `dtype=`. "
            f"Received: model={model!r}"
        )
    if variables is not None:
        variables = float_dtype(variables, "variables")
    rules, target, reason = _resolved(policy_or_rules)
    plan = decisions(model, rules, target, variables)
    _warn_of_unused(rules, plan)
    in_place = False
    try:
        new = rebuilt(model, plan, keras_policy(Policy(target, variables)))
        layers = list(pairs(model, new))
    except CannotRebuildError as error:
        _check_variables(model, plan, error)
        warnings.warn(_in_place_message(model, error), ConversionWarning, 2)
        new, in_place = model, True
        layers = [(d.layer, d.layer) for d in plan.values()]
        for decision in plan.values():
            set_policy(decision, decision.layer)
        keras_internals.forget_traces(model)
    if not return_report:
        return new
    report = ConversionReport(
        policy=policy_text(target),
        reason=reason,
        layers=tuple(_entries(plan, layers)),
        in_place=in_place,
        notes=tuple(_notes(model)),
    )
    return new, report


def _resolved(policy_or_rules: Any) -> tuple[PrecisionRules, Policy, str]:
    """Returns rules, target policy, and the reason for that one."""
    if isinstance(policy_or_rules, PrecisionRules):
        rules = policy_or_rules
    elif isinstance(policy_or_rules, Recommendation):
        rules = rule_sets.SAFE.with_policy(policy_or_rules.policy)
    elif isinstance(policy_or_rules, (str, keras.DTypePolicy)):
        rules = rule_sets.SAFE.with_policy(policy_or_rules)
    else:
        raise TypeError(
            "`policy_or_rules` must be a policy or `mp.PrecisionRules`, "
            "because it chooses a policy for each layer. Received: "
            f"policy_or_rules={policy_or_rules!r}"
        )
    reason = ""
    if rules.policy == "auto":
        recommendation = recommended_policy()
        reason = recommendation.reason
        rules = rules.with_policy(recommendation.policy)
    target = Policy(rules.policy)
    if not has_16_bits(target.compute_dtype):
        # All that rules do is to keep layers in float32.
        rules = PrecisionRules(
            [r for r in rules.rules if r.policy not in _WORDS], rules.policy
        )
    return rules, target, reason


_WORDS = (rule_words.TARGET, rule_words.FLOAT32, rule_words.FLOAT32_INSIDE)


def _warn_of_unused(
    rules: PrecisionRules, plan: Mapping[int, Decision]
) -> None:
    """Warns of a user's rules that are for no layer: a misspelt path, say."""
    expected = {rule for each in plan.values() for rule in each.rules}
    expected.update(rule_sets.ALL)
    for rule in rules.rules:
        if rule not in expected:
            warnings.warn(
                f"A rule matches no layer: {rule}. A path is matched as a "
                "whole, models around the layer included; the report of "
                "`return_report=True` has the paths.",
                ConversionWarning,
                stacklevel=3,
            )


def _notes(model: keras.Model) -> list[str]:
    """Returns what a reader of the table would not see in it."""
    if has_graph(model):
        return []
    return [
        f"`{type(model).__name__}` is a subclassed model, so its output layers "
        "are not known: its outputs are cast to float32, but computed as the "
        'table says. Give them a rule, Rule(policy="float32", path=...).'
    ]


def _check_variables(
    model: Any, plan: Mapping[int, Decision], error: CannotRebuildError
) -> None:
    """Rejects what would need variables of another dtype in the same model."""
    for decision in plan.values():
        if decision.policy is None or not decision.layer.built:
            continue
        own = decision.layer.variable_dtype
        if own != decision.policy.variable_dtype and decision.layer.weights:
            raise ValueError(
                f"`{type(model).__name__}` must be buildable from its config "
                "to change the dtype of its variables, because variables keep "
                "the dtype they were made with; implement `get_config`, or "
                "convert to a policy with "
                f"variable_dtype={own!r}. Building it failed: {error}. "
                f"Received: model={model!r}"
            ) from error


def _in_place_message(model: Any, error: CannotRebuildError) -> str:
    return (
        f"`{type(model).__name__}` cannot be built from its config, so the "
        "model itself is changed, and layers keep their classes; implement "
        f"`get_config` to get a copy. Building it failed: {error}"
    )


def _entries(
    plan: Mapping[int, Decision], layers: list[tuple[Any, Any]]
) -> Any:
    """Yields what became of each layer."""
    new_layers = {id(old): new for old, new in layers}
    for key, decision in plan.items():
        new = new_layers.get(key)
        if decision.policy is None or decision.kind == "model" or new is None:
            continue
        rules = [str(rule) for rule in decision.rules]
        yield ConvertedLayer(
            path=decision.path,
            layer_class=_class_text(type(new)),
            kind=decision.kind,
            policy=policy_text(new.dtype_policy),
            rule=rules[0] if rules else "",
            other_rules=tuple(rules[1:]),
        )


def _class_text(layer_class: type) -> str:
    """Returns the name, with `mp.layers.` where it tells ours from Keras's."""
    prefix = "mp.layers." if layer_class in TWINS.values() else ""
    return prefix + layer_class.__name__
