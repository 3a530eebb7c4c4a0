"""The argument parser of `tf-mixprec`."""

import argparse
from collections.abc import Sequence

from tf_mixprec._version import __version__
from tf_mixprec.cli import audit
from tf_mixprec.cli import bench
from tf_mixprec.cli import compare
from tf_mixprec.cli import convert
from tf_mixprec.cli import demo
from tf_mixprec.cli import devices
from tf_mixprec.cli import diagnose
from tf_mixprec.cli import tune


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit status.

    Args:
        argv: The arguments after the command's name. Defaults to those of the
            process.
    """
    parser = argparse.ArgumentParser(
        prog="tf-mixprec",
        description="Mixed-precision training for Keras 3 on TensorFlow.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}"
    )
    subcommands = parser.add_subparsers(metavar="command", required=True)
    devices.add_parser(subcommands)
    audit.add_parser(subcommands)
    bench.add_parser(subcommands)
    compare.add_parser(subcommands)
    convert.add_parser(subcommands)
    tune.add_parser(subcommands)
    demo.add_parser(subcommands)
    diagnose.add_parsers(subcommands)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)
