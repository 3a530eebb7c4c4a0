"""What subcommands share that look at a saved model and report on it."""

import argparse
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tf_mixprec.reports import Report
from tf_mixprec.reports.report import SUFFIXES


def add_model_arguments(
    parser: argparse.ArgumentParser, *, data: bool = False
) -> None:
    """Adds what names the model, and where the report goes.

    Args:
        parser: The parser of the subcommand.
        data: Whether the subcommand needs data.
    """
    parser.add_argument("model", metavar="MODEL.keras", type=pathlib.Path)
    if data:
        parser.add_argument(
            "data",
            metavar="DATA.npz",
            type=pathlib.Path,
            help="arrays x and y; of several inputs x/0, x/1 or x/name, and "
            "of outputs likewise",
        )
    add_loading_arguments(parser)
    parser.add_argument(
        "--save",
        metavar="FILE",
        type=_report_path,
        action="append",
        default=[],
        help=f"write the report as {', '.join(SUFFIXES)}; can be given several "
        "times",
    )


def add_loading_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what Keras must know to load a model.

    Args:
        parser: The parser of the subcommand.
    """
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module with classes of the model; can be given several times",
    )
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="load a file with Lambda layers, whose code is run",
    )


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says how a training step is made.

    Args:
        parser: The parser of the subcommand.
    """
    parser.add_argument(
        "--loss",
        help="such as mse (default: what the model is compiled with)",
    )
    parser.add_argument(
        "--loss-scale",
        type=float,
        help="what the loss is multiplied with (default: the optimizer's)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        help="examples in a step (default: 32)",
    )


def guarded(command: str, work: Callable[[], int]) -> int:
    """Returns the exit status of some work: 2 with one line if it fails.

    Args:
        command: The name of the subcommand.
        work: Returns an exit status.
    """
    try:
        return work()
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"tf-mixprec {command}: {error}", file=sys.stderr)
        return 2


def load_model(arguments: argparse.Namespace) -> keras.Model:
    """Returns the model, compiled if it was saved so and that can be read.

    Args:
        arguments: Those of `add_model_arguments`.

    Raises:
        ImportError: If a module is not there.
        OSError: If the file is not there.
        ValueError: If it has no model that can be made.
    """
    path = arguments.model
    try:
        return _loaded(path, arguments, compile=True)
    except (TypeError, ValueError) as error:
        try:  # only its loss or optimizer may not be known
            return _loaded(path, arguments, compile=False)
        except (TypeError, ValueError):
            raise _refused(path, error) from error


def load_uncompiled(
    path: pathlib.Path, arguments: argparse.Namespace
) -> keras.Model:
    """Returns the model of a file, without its optimizer.

    Args:
        path: The file.
        arguments: Those of `add_loading_arguments`.

    Raises:
        ImportError: If a module is not there.
        OSError: If the file is not there.
        ValueError: If it has no model that can be made.
    """
    try:
        return _loaded(path, arguments, compile=False)
    except (TypeError, ValueError) as error:
        raise _refused(path, error) from error


def _loaded(
    path: pathlib.Path, arguments: argparse.Namespace, *, compile: bool
) -> keras.Model:
    if arguments.imports and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it
    for name in arguments.imports:
        importlib.import_module(name)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    return keras.saving.load_model(
        path, compile=compile, safe_mode=not arguments.unsafe
    )


def _refused(path: pathlib.Path, error: Exception) -> ValueError:
    """Returns why a model cannot be loaded, and what can be done."""
    (line, *_) = str(error).strip().splitlines() or [""]
    remedy = "classes of your own need `--import MODULE`"
    if "safe_mode" in line:  # the Python argument is none of the command
        remedy = "if you trust the file, give `--unsafe`, and its code is run"
        line = line.partition(" If you trust")[0]
    return ValueError(
        f"{path} must be a model that Keras can load; {remedy}. Keras says: "
        f"{line}"
    )


def load_data(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Returns `(x, y)`, arrays or lists and dicts of them.

    Args:
        arguments: Those of `add_model_arguments` with data.

    Raises:
        OSError: If the file is not there.
        ValueError: If it has no `x` or no `y`.
    """
    path = arguments.data
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must be an `.npz` file of arrays. NumPy says: {error}"
        ) from error
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, last = name.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = array
    missing = [name for name in ("x", "y") if name not in tree]
    if missing:
        raise ValueError(
            "The data must have arrays `x` and `y`, of several inputs x/0, x/1 "
            f"or x/name, and of outputs likewise. Received: {path} with "
            f"{', '.join(arrays) or 'nothing'}"
        )
    return _structure(tree["x"]), _structure(tree["y"])


def _structure(tree: Any) -> Any:
    """Returns dicts with the keys 0, 1, ... as lists."""
    if not isinstance(tree, Mapping):
        return tree
    if sorted(tree) == sorted(map(str, range(len(tree)))):
        return [_structure(tree[str(index)]) for index in range(len(tree))]
    return {name: _structure(each) for name, each in tree.items()}


def finish(report: Report, arguments: argparse.Namespace) -> int:
    """Prints and saves a report; returns 1 if it has errors, else 0.

    Args:
        report: The report.
        arguments: Those of `add_model_arguments`.
    """
    print(report)
    for path in arguments.save:
        report.save(path)
        print(f"\nSaved as {path}.")
    return int(report.has_errors)


def _report_path(text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"{text!r} must end in one of {', '.join(SUFFIXES)}"
        )
    return path
