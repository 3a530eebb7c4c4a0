"""What loss scaling costs: one optimizer step, wrapped and bare.

    python benchmarks/optimizer_step.py            # the whole table
    python benchmarks/optimizer_step.py --sizes small --optimizers adam

Prints, for each number and size of variables and each optimizer, in graph mode
and under XLA, the time of one step with our wrapper and with Keras's own, as
ratios to the bare optimizer in the same mode. Everything in one group is timed
in turn within one run. A ratio below 1 is faster than the bare optimizer.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from timing import Ratio
from timing import interleaved
from timing import machine

import tf_mixprec as mp

# Number of variables, and elements of each (float32).
SIZES = {
    "small": (200, 1_000),
    "medium": (50, 100_000),
    "large": (8, 5_000_000),
}

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(1e-3),
    "momentum": lambda: keras.optimizers.SGD(1e-3, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adamw": lambda: keras.optimizers.AdamW(1e-3),
    "adam_clipped": lambda: keras.optimizers.Adam(1e-3, global_clipnorm=1.0),
}

WRAPPERS = {
    "bare": lambda optimizer: optimizer,
    "keras": keras.optimizers.LossScaleOptimizer,
    "ours": mp.wrap,
}

MODES = {"graph": False, "xla": True}


def make_step(
    optimizer: keras.optimizers.Optimizer,
    count: int,
    size: int,
    jit_compile: bool,
) -> Callable[[], object]:
    """Returns a step on variables of its own, with constant gradients."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=size).astype("float32")
    variables = [keras.Variable(values) for _ in range(count)]
    # Variables and not arguments: passing hundreds of arguments takes longer
    # than the step.
    gradients = [tf.Variable(values, trainable=False) for _ in range(count)]
    optimizer.build(variables)
    optimizer.scale_loss(1.0)

    @tf.function(jit_compile=jit_compile)
    def step():
        optimizer.apply([g.read_value() for g in gradients], variables)
        return optimizer.iterations + 0

    return lambda: step().numpy()


def measure(
    size: str, optimizer: str, modes: Sequence[str], rounds: int
) -> dict[str, dict[str, Ratio]]:
    """Returns, by mode and wrapper, the ratio to the bare optimizer."""
    times = interleaved(
        {
            (mode, wrapper): make_step(
                wrap(OPTIMIZERS[optimizer]()), *SIZES[size], MODES[mode]
            )
            for mode in modes
            for wrapper, wrap in WRAPPERS.items()
        },
        rounds,
    )
    return {
        mode: {
            wrapper: Ratio.of(times[mode, wrapper], times[mode, "bare"])
            for wrapper in WRAPPERS
        }
        for mode in modes
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    arguments = parser.parse_args(argv)
    modes = list(arguments.modes)

    for name, value in machine().items():
        print(f"{name + ':':<12}{value}")
    print("median (min-max) of the ratios to the bare optimizer, median time\n")
    figures = []
    for size in arguments.sizes:
        count, elements = SIZES[size]
        for optimizer in arguments.optimizers:
            group = measure(size, optimizer, modes, arguments.rounds)
            for mode, ratios in group.items():
                print(f"{count} x {elements:,}  {optimizer:<9}{mode:<6}")
                for wrapper, ratio in ratios.items():
                    print(f"    {wrapper:<6} {ratio}", flush=True)
                    figures.append(
                        {
                            "variables": count,
                            "elements": elements,
                            "optimizer": optimizer,
                            "mode": mode,
                            "wrapper": wrapper,
                            **dataclasses.asdict(ratio),
                        }
                    )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"machine": machine(), "figures": figures}, file, indent=1
            )


if __name__ == "__main__":
    main()
