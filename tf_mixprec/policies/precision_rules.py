"""Rules that choose a policy for each layer of a model."""

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

import keras

from tf_mixprec.policies.kinds import KINDS
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.policy import policy_text

# What a rule may say in the place of a policy.
TARGET = "target"
FLOAT32 = "float32"
FLOAT32_INSIDE = "float32_inside"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """Gives some layers a policy; all conditions that are given must hold.

    Args:
        policy: `"target"` for the policy that the model is converted to;
            `"float32"`; `"float32_inside"` to compute in float32 and return
            what the target policy returns; or any other string for
            `mp.Policy`.
        path: Regular expression that matches the whole path of the layer: the
            names of the models around it and its own, joined by `/`, without
            that of the outermost model.
        layer_class: Name of a class, or the class. Subclasses match.
        kind: What the layer does; one of `mp.rules.KINDS`.
        reason: Why, in a few words, for reports.

    Raises:
        ValueError: If the policy, the expression or the kind is not valid.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> rule = mp.rules.Rule(policy="float32", path="decoder/.*")
    >>> rule.matches("decoder/out", keras.layers.Dense(1), "matmul")
    True
    """

    policy: str
    path: str | None = None
    layer_class: str | None = None
    kind: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Rejects what can never match or never be applied."""
        policy = _text_of(self.policy, (TARGET, FLOAT32_INSIDE))
        object.__setattr__(self, "policy", policy)
        if isinstance(self.layer_class, type):
            name = keras.saving.get_registered_name(self.layer_class)
            object.__setattr__(self, "layer_class", name)
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(
                f"`kind` must be one of {', '.join(KINDS)}, because a rule "
                "with another would never match. Received: "
                f"kind={self.kind!r}"
            )
        if self.path is not None:
            try:
                re.compile(self.path)
            except re.error as error:
                raise ValueError(
                    "`path` must be a regular expression, because it is "
                    f"matched with the path of a layer; {error}. Received: "
                    f"path={self.path!r}"
                ) from error

    def matches(self, path: str, layer: Any, kind: str) -> bool:
        """Returns whether the rule is for a layer.

        Args:
            path: Its path.
            layer: The layer.
            kind: Its kind.
        """
        return (
            (self.kind is None or self.kind == kind)
            and (self.path is None or bool(re.fullmatch(self.path, path)))
            and (
                self.layer_class is None
                or self.layer_class in _class_names(type(layer))
            )
        )

    def __str__(self) -> str:
        """The conditions, and the reason."""
        conditions = [
            f"{name}={getattr(self, name)}"
            for name in ("path", "layer_class", "kind")
            if getattr(self, name) is not None
        ]
        text = " ".join(conditions) or "any layer"
        return f"{text}: {self.reason}" if self.reason else text


def _text_of(policy: Any, words: tuple[str, ...]) -> str:
    """Returns a policy as a string, which JSON can hold, if it is one.

    Args:
        policy: A policy, a string for `mp.Policy`, or one of the words.
        words: What may stand in the place of a policy.
    """
    if policy in words:
        return policy
    parsed = Policy(policy)
    return policy if isinstance(policy, str) else policy_text(parsed)


def _class_names(layer_class: type) -> set[str]:
    """Returns the names of a class and its bases, registered or not."""
    names = set()
    for base in layer_class.__mro__:
        names |= {base.__name__, keras.saving.get_registered_name(base)}
    return names


@keras.saving.register_keras_serializable("tf_mixprec")
class PrecisionRules:
    """An ordered list of rules: the first that matches a layer decides.

    Args:
        rules: The rules, first tried first. A layer that none matches gets the
            target policy.
        policy: The target policy: a string for `mp.Policy`, or `"auto"` for
            what `mp.recommended_policy` says of the device.

    Example:

    >>> import tf_mixprec as mp
    >>> rules = mp.PrecisionRules(
    ...     [
    ...         mp.rules.Rule(policy="float32", path="decoder/.*"),
    ...         *mp.rules.SAFE.rules,
    ...     ],
    ...     policy="mixed_bfloat16",
    ... )
    >>> mp.PrecisionRules.from_json(rules.to_json()) == rules
    True
    """

    def __init__(self, rules: Iterable[Rule], policy: Any = "auto"):
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(
                    "`rules` must be instances of `mp.rules.Rule`, because "
                    "each says what it matches and what it gives. Received: "
                    f"{rule!r}"
                )
        self.policy = _text_of(policy, ("auto",))

    def with_policy(self, policy: Any) -> "PrecisionRules":
        """Returns the same rules with another target policy."""
        return PrecisionRules(self.rules, policy)

    def matching(self, path: str, layer: Any, kind: str) -> list[Rule]:
        """Returns the rules that match a layer; the first one decides."""
        return [rule for rule in self.rules if rule.matches(path, layer, kind)]

    def get_config(self) -> dict[str, Any]:
        """Returns the rules as plain dicts."""
        return {
            "policy": self.policy,
            "rules": [
                {
                    key: value
                    for key, value in dataclasses.asdict(rule).items()
                    if value
                }
                for rule in self.rules
            ],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PrecisionRules":
        """Returns the rules of a config.

        Raises:
            ValueError: If a rule has a key that rules do not have.
        """
        rules = []
        for each in config["rules"]:
            try:
                rules.append(Rule(**each))
            except TypeError as error:
                raise ValueError(
                    "A rule has `policy`, and any of `path`, `layer_class`, "
                    "`kind` and `reason`, because another key would be "
                    f"ignored. Received: {each!r}"
                ) from error
        return cls(rules, config.get("policy", "auto"))

    def to_json(self) -> str:
        """Returns the rules as JSON, for a file that a person may edit."""
        return json.dumps(self.get_config(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "PrecisionRules":
        """Returns the rules of a JSON text.

        Raises:
            ValueError: If the text is no JSON, or a rule in it is wrong.
        """
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                "`text` must be the JSON that `to_json` makes, and not the "
                "name of a file; read a file with "
                f"`Path(file).read_text()`. Received: text={text!r}"
            ) from error
        return cls.from_config(config)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PrecisionRules)
            and other.rules == self.rules
            and other.policy == self.policy
        )

    def __hash__(self) -> int:
        return hash((self.rules, self.policy))

    def __repr__(self) -> str:
        return f"<PrecisionRules {len(self.rules)} rules, {self.policy!r}>"
