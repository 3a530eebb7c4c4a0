"""`tf-mixprec bench`: how fast a saved model trains in each precision."""

import argparse
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand."""
    parser = subcommands.add_parser(
        "bench",
        help="how fast a model trains in each precision, and what slows it",
        description=(
            "Times a training step of a saved model in float32 and in 16 bits "
            "in turn, counts what it does, and says what to change. The exit "
            "status is 2 if the files cannot be used."
        ),
    )
    reporting.add_model_arguments(parser, data=True)
    parser.add_argument(
        "--policy",
        dest="policies",
        metavar="POLICY",
        action="append",
        help="such as mixed_bfloat16; can be given several times, the first "
        "is what others are compared with (default: float32, and the model's "
        "own or what suits the device)",
    )
    parser.add_argument(
        "--loss", help="such as mse (default: what the model is compiled with)"
    )
    parser.add_argument(
        "--optimizer",
        help="such as adam (default: what the model is compiled with, or adam)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        help="examples in a step (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-sizes",
        metavar="N",
        type=int,
        nargs="+",
        default=[],
        help="other sizes to try",
    )
    parser.add_argument(
        "--xla",
        choices=("on", "off"),
        help="whether XLA compiles the steps (default: both for the precision "
        "of the model)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="how long to measure (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        x, y = reporting.load_data(arguments)
        found = mp.profile(
            model,
            x,
            y,
            loss=arguments.loss,
            optimizer=arguments.optimizer,
            policies=arguments.policies,
            batch_size=arguments.batch_size,
            batch_sizes=arguments.batch_sizes,
            jit_compile={"on": True, "off": False}.get(arguments.xla),
            seconds=arguments.seconds,
        )
        return reporting.finish(found, arguments)

    return reporting.guarded("bench", work)
