"""A model in another precision for a while, without a copy of it."""

from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from tf_mixprec.conversion.plan import Decision
from tf_mixprec.conversion.plan import decisions
from tf_mixprec.conversion.rebuild import set_policy
from tf_mixprec.policies import rules as rule_sets
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.recommendation import recommended_policy
from tf_mixprec.training import keras_internals


@contextmanager
def in_precision(model: Any, policy_or_rules: Any) -> Iterator[None]:
    """Gives the layers of a model other policies, in a block.

    For what is traced in the block. Variables keep their dtype, and layers
    their class: where `mp.convert` would make a layer of another class, this
    one computes in float32 as a whole.

    Args:
        model: The model.
        policy_or_rules: A policy, applied by `mp.rules.SAFE`, or rules; `None`
            for the policies that the layers have.
    """
    if policy_or_rules is None:
        yield
        return
    rules = as_rules(policy_or_rules)
    plan = decisions(model, rules, Policy(rules.policy), None)
    with decided(model, plan.values()):
        yield


@contextmanager
def decided(model: Any, decisions: Iterable[Decision]) -> Iterator[None]:
    """Gives layers the policies of decisions, in a block.

    Args:
        model: The model or layer that they are in.
        decisions: On some of its layers.
    """
    layers = keras_internals.all_layers(model)
    before = [(layer, layer.dtype_policy) for layer in layers]
    try:
        for decision in decisions:
            set_policy(decision, decision.layer)
        yield
    finally:
        for layer, policy in before:
            if layer.dtype_policy is not policy:
                layer.dtype_policy = policy


def as_rules(policy_or_rules: Any) -> PrecisionRules:
    """Returns rules with a policy; of a policy, the safe ones.

    Args:
        policy_or_rules: As for `mp.convert`.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(policy_or_rules, PrecisionRules):
        return _of_device(policy_or_rules)
    if not isinstance(policy_or_rules, (str, keras.DTypePolicy)):
        raise TypeError(
            "A policy must be its name, a `keras.DTypePolicy` or "
            "`mp.PrecisionRules`, because it chooses a dtype for each layer. "
            f"Received: {policy_or_rules!r}"
        )
    return _of_device(rule_sets.SAFE.with_policy(policy_or_rules))


def _of_device(rules: PrecisionRules) -> PrecisionRules:
    """Returns rules with the policy that suits the device for `"auto"`."""
    if rules.policy != "auto":
        return rules
    return rules.with_policy(recommended_policy().policy)
