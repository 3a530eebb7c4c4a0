"""`tf-mixprec diagnose` and `find-nonfinite`: the numbers of a saved model."""

import argparse
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parsers(subcommands: Any) -> None:
    """Adds the two subcommands."""
    parser = subcommands.add_parser(
        "diagnose",
        help="what 16 bits do to the numbers of a model, on data",
        description=(
            "Makes training steps of a saved model that change nothing, and "
            "says layer by layer what underflows, overflows or is lost, and "
            "which loss scales work. The exit status is 1 if there is an "
            "error in the numbers, and 2 if the step cannot be made."
        ),
    )
    reporting.add_model_arguments(parser, data=True)
    reporting.add_step_arguments(parser)
    parser.add_argument(
        "--policy",
        help="what would be with a policy, such as mixed_float16 (default: "
        "the policies of the layers)",
    )
    parser.set_defaults(run=run)
    parser = subcommands.add_parser(
        "find-nonfinite",
        help="which tensor is the first with inf or nan, on data",
        description=(
            "Makes training steps of a saved model that change nothing until "
            "one has inf or nan, and names the layer and the phase. The exit "
            "status is 1 if there is one, and 2 if a step cannot be made."
        ),
    )
    reporting.add_model_arguments(parser, data=True)
    reporting.add_step_arguments(parser)
    parser.set_defaults(run=run_find_nonfinite)


def run(arguments: argparse.Namespace) -> int:
    """Diagnoses and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        x, y = reporting.load_data(arguments)
        report = mp.diagnose(
            model, x, y, policy=arguments.policy, **_step(arguments)
        )
        return reporting.finish(report, arguments)

    return reporting.guarded("diagnose", work)


def run_find_nonfinite(arguments: argparse.Namespace) -> int:
    """Looks for inf and nan, and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        x, y = reporting.load_data(arguments)
        report = mp.find_nonfinite(model, x, y, **_step(arguments))
        return reporting.finish(report, arguments)

    return reporting.guarded("find-nonfinite", work)


def _step(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "loss": arguments.loss,
        "loss_scale": arguments.loss_scale,
        "batch_size": arguments.batch_size,
    }
