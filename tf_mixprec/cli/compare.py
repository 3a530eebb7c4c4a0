"""`tf-mixprec compare`: a saved model against itself in float32."""

import argparse
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand."""
    parser = subcommands.add_parser(
        "compare",
        help="how far each layer is from float32, on data",
        description=(
            "Makes a training step of a saved model in float32 and in other "
            "precisions, and compares outputs and gradients layer by layer. "
            "The exit status is 1 if something is inf or nan that is not in "
            "float32, and 2 if the step cannot be made."
        ),
    )
    reporting.add_model_arguments(parser, data=True)
    reporting.add_step_arguments(parser)
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        help="such as mixed_float16; can be given several times (default: the "
        "policies of the layers)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compares and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        x, y = reporting.load_data(arguments)
        report = mp.compare(
            model,
            x,
            y,
            policies=arguments.policies,
            loss=arguments.loss,
            loss_scale=arguments.loss_scale,
            batch_size=arguments.batch_size,
        )
        return reporting.finish(report, arguments)

    return reporting.guarded("compare", work)
