"""`tf-mixprec audit`: what is wrong with the precision of a saved model."""

import argparse
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand."""
    parser = subcommands.add_parser(
        "audit",
        help="what is wrong with the precision of a model, without data",
        description=(
            "Looks at the dtypes, sizes, constants and casts of a saved model "
            "and at how it is compiled. The exit status is 1 if there is an "
            "error in it, and 2 if it cannot be read."
        ),
    )
    reporting.add_model_arguments(parser)
    parser.add_argument(
        "--policy",
        help="audit the model as mp.convert makes it, such as mixed_bfloat16 "
        "(default: as it is)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        help="examples in a call (default: 32)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Audits and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        found = mp.audit(
            model, policy=arguments.policy, batch_size=arguments.batch_size
        )
        return reporting.finish(found, arguments)

    return reporting.guarded("audit", work)
