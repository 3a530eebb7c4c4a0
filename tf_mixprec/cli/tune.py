"""`tf-mixprec tune`: which layers of a saved model must stay in float32."""

import argparse
import pathlib
from typing import Any

import tf_mixprec as mp
from tf_mixprec.cli import reporting


def add_parser(subcommands: Any) -> None:
    """Adds the subcommand."""
    parser = subcommands.add_parser(
        "tune",
        help="the fewest layers in float32 that keep the loss of a model",
        description=(
            "Tries a saved model with some layers in float32 and the others in "
            "16 bits, and finds the fewest that keep the loss within a budget. "
            "The exit status is 1 if no such layers suffice, and 2 if it "
            "cannot be tried."
        ),
    )
    reporting.add_model_arguments(parser, data=True)
    parser.add_argument(
        "--policy",
        default="auto",
        help="such as mixed_bfloat16 (default: by the device)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=0.01,
        help="how much worse the loss may be, as a share (default: 0.01)",
    )
    parser.add_argument(
        "--loss", help="such as mse (default: what the model is compiled with)"
    )
    parser.add_argument(
        "--metric",
        help="a metric of Keras's that the budget is for (default: the loss)",
    )
    parser.add_argument(
        "--mode",
        choices=("auto", "min", "max"),
        default="auto",
        help="whether less or more of the metric is better (default: auto)",
    )
    parser.add_argument(
        "--max-trials",
        type=int,
        default=20,
        help="sets of layers to try at most (default: 20)",
    )
    parser.add_argument(
        "--max-seconds",
        type=float,
        help="begin no trial after this time (default: no limit)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        help="examples in a batch (default: 32)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the examples (default: 0)"
    )
    parser.add_argument(
        "--rules-out",
        metavar="FILE.json",
        type=pathlib.Path,
        help="write the rules, for `tf-mixprec convert --rules`",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tunes and returns the exit status."""

    def work() -> int:
        model = reporting.load_model(arguments)
        x, y = reporting.load_data(arguments)
        report = mp.tune(
            model,
            x,
            y,
            loss=arguments.loss,
            policy=arguments.policy,
            budget=arguments.budget,
            metric=arguments.metric,
            mode=arguments.mode,
            max_trials=arguments.max_trials,
            max_seconds=arguments.max_seconds,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
        )
        status = reporting.finish(report, arguments)
        if arguments.rules_out is not None:
            arguments.rules_out.write_text(report.rules.to_json())
            print(f"\nSaved the rules as {arguments.rules_out}.")
        return status

    return reporting.guarded("tune", work)
