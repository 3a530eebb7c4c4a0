"""Which layers rules leave in 16 bits, and how one is kept in float32."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.conversion.heads import has_graph
from tf_mixprec.conversion.plan import Decision
from tf_mixprec.conversion.plan import decisions
from tf_mixprec.conversion.plan import own_children
from tf_mixprec.diagnostics.tapped_layers import tapped_layers
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import kinds
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.precision_rules import FLOAT32
from tf_mixprec.policies.precision_rules import FLOAT32_INSIDE
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.precision_rules import Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A layer in 16 bits that could be in float32.

    Args:
        path: The path of the layer.
        layer: The layer.
        decision: What the rules make of it.
        returned: The dtype that it then returns.
        in_code: Whether code calls it, that of a user's layer or model, which
            may count on the dtype of what it gets back.
        parts: What becomes of the layers that the code of this one calls.
    """

    path: str
    layer: Any
    decision: Decision
    returned: str
    in_code: bool
    parts: tuple[Decision, ...]

    @property
    def layer_class(self) -> str:
        """The name of its class."""
        return type(self.layer).__name__

    @property
    def is_cheap(self) -> bool:
        """Whether it does little work, in any precision."""
        return self.decision.kind == "other" and not self.layer.weights

    def rules(self, reason: str) -> list[Rule]:
        """Returns the rules that keep it, and what is in it, in float32.

        Args:
            reason: Why.
        """
        path = re.escape(self.path)
        # What code gets back from it stays in 16 bits.
        policy = FLOAT32_INSIDE if self.in_code else FLOAT32
        rules = [Rule(policy=policy, path=path, reason=reason)]
        if self.parts:  # they would return 16 bits to its own code
            inside = f"{path}/.*"
            rules.append(Rule(policy=FLOAT32, path=inside, reason=reason))
        return rules

    def holds(self, other: "Unit") -> bool:
        """Returns whether another one is in it, and moves with it.

        Args:
            other: The other one.
        """
        return any(part.layer is other.layer for part in self.parts)

    def narrowed(self) -> Iterator[Decision]:
        """Yields what makes its own computation one in 16 bits, and no other.

        Layers that its code calls compute in float32 and return 16 bits.
        """
        yield self.decision
        inside = Policy(FLOAT32, FLOAT32, self.returned)
        for part in self.parts:
            yield dataclasses.replace(part, policy=inside, fallback=inside)


def units_of(model: Any, rules: PrecisionRules) -> list[Unit]:
    """Returns the layers that rules leave in 16 bits.

    Args:
        model: The model.
        rules: The rules, with a policy.
    """
    plan = decisions(model, rules, Policy(rules.policy), None)
    in_code = {id(layer) for layer in called_by_code(model)}
    units = []
    for tapped in tapped_layers(model):
        decision = plan.get(id(tapped.layer))
        is_inside = id(tapped.layer) in in_code
        if decision is None or not _can_be_raised(decision, is_inside):
            continue
        units.append(
            Unit(
                path=tapped.path,
                layer=tapped.layer,
                decision=decision,
                returned=_returned(decision.fallback),
                in_code=is_inside,
                parts=tuple(
                    plan[id(part)]
                    for part in _parts(tapped.layer)
                    if id(part) in plan and plan[id(part)].policy is not None
                ),
            )
        )
    return units


def _can_be_raised(decision: Decision, in_code: bool) -> bool:
    policy = decision.fallback
    if policy is None or decision.kind == "model":
        return False
    if has_16_bits(policy.compute_dtype):
        return True
    # In code it must go on returning 16 bits, as it does.
    return has_16_bits(_returned(policy)) and not in_code


def _returned(policy: Any) -> str:
    return getattr(policy, "output_dtype", policy.compute_dtype)


def called_by_code(layer: Any, in_code: bool = False) -> Iterator[Any]:
    """Yields the layers that code calls: not a graph, and not Keras's own.

    Args:
        layer: Where to start.
        in_code: Whether code calls this one.
    """
    if in_code:
        yield layer
    is_graph = isinstance(layer, keras.Model) and has_graph(layer)
    if not is_graph and not kinds.is_keras_own(layer):
        in_code = True
    for child in own_children(layer):
        yield from called_by_code(child, in_code)


def _parts(layer: Any) -> Iterator[Any]:
    for child in own_children(layer):
        yield child
        yield from _parts(child)
