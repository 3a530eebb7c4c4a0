"""`tf-mixprec convert`: a saved model in another precision."""

import argparse
import pathlib
import re
import sys
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand."""
    parser = subcommands.add_parser(
        "convert",
        help="a .keras file in another precision",
        description=(
            "Loads a model, gives each layer the precision that is safe for "
            "it, saves it without its optimizer, and prints what each layer "
            "got and why."
        ),
    )
    parser.add_argument("source", metavar="IN.keras", type=pathlib.Path)
    parser.add_argument("target", metavar="OUT.keras", type=pathlib.Path)
    reporting.add_loading_arguments(parser)
    parser.add_argument(
        "--policy",
        default="auto",
        help="such as mixed_bfloat16 or float32 (default: by the device)",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE.json",
        type=pathlib.Path,
        help="rules in the place of mp.rules.SAFE; see mp.PrecisionRules",
    )
    parser.add_argument(
        "--keep-float32",
        metavar="REGEX",
        action="append",
        default=[],
        help="paths of layers to keep in float32; can be given several times",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Converts and returns the exit status."""
    try:
        rules = _rules(arguments)
        model = reporting.load_uncompiled(arguments.source, arguments)
        model, report = mp.convert(model, rules, return_report=True)
        model.save(arguments.target)
    except (ImportError, OSError, ValueError, TypeError, re.error) as error:
        print(f"tf-mixprec convert: {error}", file=sys.stderr)
        return 1
    print(report)
    print(f"\nSaved as {arguments.target}; compile it before training.")
    return 0


def _rules(arguments: argparse.Namespace) -> Any:
    rules = mp.rules.SAFE
    if arguments.rules is not None:
        text = arguments.rules.read_text()
        try:
            rules = mp.PrecisionRules.from_json(text)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{arguments.rules}: {error}") from error
    keep = [
        mp.rules.Rule(policy="float32", path=path, reason="--keep-float32")
        for path in arguments.keep_float32
    ]
    policy = arguments.policy
    if policy == "auto":
        policy = rules.policy
    return mp.PrecisionRules([*keep, *rules.rules], policy)
