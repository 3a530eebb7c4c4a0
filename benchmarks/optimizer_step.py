"""What loss scaling costs: one optimizer step, wrapped and bare.

    python benchmarks/optimizer_step.py          # all tables, 15 minutes
    python benchmarks/optimizer_step.py --tables steps --sizes large

Four tables, each of ratios within one interleaved run:

steps    our wrapper and Keras's own, to the bare optimizer in the same mode
skips    a step with a NaN, to a step without
clips    with `global_clipnorm`, to without
growth   to the bare optimizer, from 10 to 1000 variables of 1000 elements, and
         from 1 to 100 million parameters in 20 variables

A ratio below 1 is faster.
"""

import argparse
import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from timing import Ratio
from timing import interleaved
from timing import machine
from timing import write_json

import tf_mixprec as mp

Optimizer = keras.optimizers.Optimizer

# Number of variables, and elements of each (float32).
SIZES = {
    "small": (200, 1_000),
    "medium": (50, 100_000),
    "large": (8, 5_000_000),
}

GROWTH = [
    (10, 1_000),
    (100, 1_000),
    (1000, 1_000),
    (20, 50_000),
    (20, 500_000),
    (20, 5_000_000),
]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda **settings: keras.optimizers.SGD(1e-3, **settings),
    "momentum": lambda **settings: keras.optimizers.SGD(
        1e-3, momentum=0.9, **settings
    ),
    "adam": lambda **settings: keras.optimizers.Adam(1e-3, **settings),
    "adamw": lambda **settings: keras.optimizers.AdamW(1e-3, **settings),
}

WRAPPERS: dict[str, Callable[[Optimizer], Optimizer]] = {
    "bare": lambda optimizer: optimizer,
    "keras": keras.optimizers.LossScaleOptimizer,
    "ours": mp.wrap,
}

MODES = {"graph": False, "xla": True}

Row = tuple[dict[str, Any], Ratio]


def make_step(
    optimizer: Optimizer,
    size: tuple[int, int],
    mode: str,
    nan: bool = False,
) -> Callable[[], object]:
    """Returns a step on variables of its own, with constant gradients.

    Args:
        optimizer: The optimizer, wrapped or bare.
        size: Number of variables, and elements of each.
        mode: "graph" or "xla".
        nan: Whether one gradient has a NaN.
    """
    count, elements = size
    values = np.random.default_rng(0).normal(size=elements).astype("float32")
    variables = [keras.Variable(values) for _ in range(count)]
    # Variables and not arguments: passing hundreds of arguments takes longer
    # than the step.
    gradients = [tf.Variable(values, trainable=False) for _ in range(count)]
    if nan:
        gradients[-1].assign(tf.fill([elements], np.float32(np.nan)))
    optimizer.build(variables)
    optimizer.scale_loss(1.0)

    @tf.function(jit_compile=MODES[mode])
    def step():
        optimizer.apply([g.read_value() for g in gradients], variables)
        return optimizer.iterations + 0

    return lambda: step().numpy()


def steps(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of wrapped steps against bare ones."""
    for size in arguments.sizes:
        for name in arguments.optimizers:
            times = interleaved(
                {
                    (mode, wrapper): make_step(
                        wrap(OPTIMIZERS[name]()), SIZES[size], mode
                    )
                    for mode in arguments.modes
                    for wrapper, wrap in WRAPPERS.items()
                },
                arguments.rounds,
            )
            for mode, wrapper in times:
                yield (
                    {
                        "size": SIZES[size],
                        "optimizer": name,
                        "mode": mode,
                        "wrapper": wrapper,
                    },
                    Ratio.of(times[mode, wrapper], times[mode, "bare"]),
                )


def skips(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of skipped steps against finite ones."""
    for size in arguments.sizes:
        times = interleaved(
            {
                (mode, nan): make_step(
                    mp.wrap(OPTIMIZERS["adam"]()), SIZES[size], mode, nan
                )
                for mode in arguments.modes
                for nan in (False, True)
            },
            arguments.rounds,
        )
        for mode in arguments.modes:
            yield (
                {"size": SIZES[size], "optimizer": "adam", "mode": mode},
                Ratio.of(times[mode, True], times[mode, False]),
            )


def clips(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of steps with clipping against those without."""
    for size in arguments.sizes:
        for mode in arguments.modes:  # apart, for the sake of memory
            times = interleaved(
                {
                    (wrapper, clip): make_step(
                        wrap(OPTIMIZERS["adam"](global_clipnorm=clip)),
                        SIZES[size],
                        mode,
                    )
                    for wrapper, wrap in WRAPPERS.items()
                    for clip in (None, 1.0)
                },
                arguments.rounds,
            )
            for wrapper in WRAPPERS:
                yield (
                    {
                        "size": SIZES[size],
                        "optimizer": "adam",
                        "mode": mode,
                        "wrapper": wrapper,
                    },
                    Ratio.of(times[wrapper, 1.0], times[wrapper, None]),
                )


def growth(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of wrapped steps in graph mode, from few to many."""
    for size in GROWTH:
        times = interleaved(
            {
                wrapper: make_step(wrap(OPTIMIZERS["adam"]()), size, "graph")
                for wrapper, wrap in WRAPPERS.items()
            },
            arguments.rounds,
        )
        for wrapper in WRAPPERS:
            yield (
                {
                    "size": size,
                    "optimizer": "adam",
                    "mode": "graph",
                    "wrapper": wrapper,
                },
                Ratio.of(times[wrapper], times["bare"]),
            )


TABLES = {"steps": steps, "skips": skips, "clips": clips, "growth": growth}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, choices in (
        ("tables", TABLES),
        ("sizes", SIZES),
        ("optimizers", OPTIMIZERS),
        ("modes", MODES),
    ):
        parser.add_argument(
            f"--{name}", nargs="+", choices=choices, default=list(choices)
        )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    arguments = parser.parse_args(argv)

    for key, value in machine().items():
        print(f"{key + ':':<12}{value}")
    figures = []
    for table in arguments.tables:
        print(f"\n{table}: median (min-max) of the ratios, and median time")
        for labels, ratio in TABLES[table](arguments):
            count, elements = labels["size"]
            others = list(labels.values())[1:]
            print(
                f"{f'{count} x {elements:,}':<15}"
                + "".join(f"{label:<9}" for label in others)
                + f" {ratio}",
                flush=True,
            )
            figures.append(
                {"table": table, **labels, **dataclasses.asdict(ratio)}
            )
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
