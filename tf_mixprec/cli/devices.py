"""`tf-mixprec devices`: the policy that suits each device, and why."""

import argparse
import json
import sys
import textwrap
from typing import Any

from tf_mixprec.policies import Recommendation
from tf_mixprec.policies import hardware
from tf_mixprec.policies import recommended_policy
from tf_mixprec.policies.recommendation import check_backend

COLUMNS = 80
LABEL_COLUMNS = 21
LABELS = {
    "compute_capability": "compute capability",
    "cpu_features": "16-bit instructions",
    "onednn": "oneDNN is on",
    "float16_is_fast": "float16 is fast",
    "float8_available": "float8 available",
    "matrix_size": "matrix size",
    "milliseconds": "milliseconds",
    "speed_up": "speed-up",
}


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand to the command line."""
    parser = subcommands.add_parser(
        "devices",
        help="say which precision suits each device, and why",
        description="Prints each device that TensorFlow sees, the dtype policy "
        "that suits it, and why.",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="multiply matrices on each device, two seconds each, and believe "
        "the times",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list instead"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report and returns the exit status."""
    try:
        check_backend()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    found = recommendations(arguments.measure)
    if arguments.json:
        print(json.dumps([_record(*each) for each in found.items()], indent=2))
    else:
        print("\n\n".join(report(*each) for each in found.items()))
    return 0


def recommendations(measure: bool) -> dict[str, Recommendation]:
    """Returns the recommendation for each device, by name, GPUs first.

    Where GPUs differ in it, one more, under `"GPU"`, is for all of them.
    """
    found = _for_each("GPU", measure)
    if len({each.policy.name for each in found.values()}) > 1:
        found["GPU"] = recommended_policy("GPU", measure=measure)
    return {**found, **_for_each("CPU", measure)}


def _for_each(kind: str, measure: bool) -> dict[str, Recommendation]:
    return {
        device.name: recommended_policy(device.name, measure=measure)
        for device in hardware.one_each(hardware.visible_devices(kind))
    }


def _record(name: str, recommendation: Recommendation) -> dict[str, Any]:
    return {
        "device": name,
        "policy": recommendation.policy.name,
        "reason": recommendation.reason,
        "facts": recommendation.facts,
    }


def report(name: str, recommendation: Recommendation) -> str:
    """Returns the recommendation for one device as lines of text."""
    facts = recommendation.facts
    together = name == "GPU"
    lines = [
        "all GPUs together" if together else f"{name}  {facts['name']}",
        _line("policy", recommendation.policy.name),
        _line("reason", recommendation.reason),
    ]
    if not together:
        lines += [
            _line(label, _text(facts[fact]))
            for fact, label in LABELS.items()
            if fact in facts
        ]
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        COLUMNS,
        initial_indent=f"  {label:<{LABEL_COLUMNS}}",
        subsequent_indent=" " * (LABEL_COLUMNS + 2),
        break_on_hyphens=False,
    )


def _text(fact: Any) -> str:
    """Returns a fact in words."""
    if fact is None:
        return "not known"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in fact.items())
    if isinstance(fact, list):
        numbers = all(isinstance(each, int) for each in fact)
        separator = "." if fact and numbers else ", "
        return separator.join(str(each) for each in fact) or "none"
    return f"{fact:.4g}"
