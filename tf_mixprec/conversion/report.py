"""What a conversion did, layer by layer."""

import dataclasses

from tf_mixprec._table import table_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertedLayer:
    """What became of one layer.

    Args:
        path: The names of the models around it and its own, joined by `/`.
        layer_class: Name of the class it has now.
        kind: What it does; one of `mp.rules.KINDS`.
        policy: The policy it has now, as a string.
        rule: The rule that decided; empty where none matched.
        other_rules: Later rules that match as well, and are overruled.
    """

    path: str
    layer_class: str
    kind: str
    policy: str
    rule: str
    other_rules: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """What `mp.convert` did.

    Args:
        policy: The target policy, as a string.
        reason: Why that one, where the device decided.
        layers: One entry per layer.
        in_place: Whether the model itself was changed, since a copy could not
            be built.
        notes: What the user may want to know of the whole.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((4,)),
    ...         keras.layers.Dense(8, name="hidden"),
    ...         keras.layers.Dense(2, name="head"),
    ...     ]
    ... )
    >>> _, report = mp.convert(model, "mixed_float16", return_report=True)
    >>> [(each.path, each.policy) for each in report.layers]
    [('hidden', 'mixed_float16'), ('head', 'float32')]
    """

    policy: str
    reason: str
    layers: tuple[ConvertedLayer, ...]
    in_place: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A table, one line per layer."""
        rows = [("layer", "class", "policy", "rule")]
        rows += [
            (each.path, each.layer_class, each.policy, _rule_text(each))
            for each in self.layers
        ]
        head = [f"policy: {self.policy}"]
        if self.reason:
            head.append(self.reason)
        if self.in_place:
            head.append("The model itself was changed; it has no copy.")
        head += self.notes
        return "\n".join([*head, "", table_text(rows)])


def _rule_text(layer: ConvertedLayer) -> str:
    text = layer.rule or "the target policy"
    if layer.other_rules:
        text += f" (before: {'; '.join(layer.other_rules)})"
    return text
