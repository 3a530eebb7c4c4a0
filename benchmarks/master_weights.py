"""What 16-bit variables lose and save, with masters and without.

    python benchmarks/master_weights.py                  # all sections
    python benchmarks/master_weights.py --sections lost accuracy
    python benchmarks/master_weights.py --quick          # a smoke test

Four sections:

lost      SGD whose every update is below half an ulp of a 16-bit weight
accuracy  a small CNN on 5,000 MNIST digits, several seeds, Adam
memory    bytes a parameter: held after a step, and at the peak of a step
speed     a training step, to Keras's mixed_bfloat16; below 1 is faster

"masters" stands for bfloat16 variables that `mp.wrap` keeps masters of, and
"stochastic" for bfloat16 variables without, rounded by chance. The last layer
of classifiers is float32 in all variants.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import train_step
from keras import layers
from timing import Ratio
from timing import interleaved
from timing import machine
from timing import write_json

import tf_mixprec as mp
from tf_mixprec.cli import memory as device_memory
from tf_mixprec.cli import mnist

Optimizer = keras.optimizers.Optimizer
Row = tuple[dict[str, Any], str]

KERAS_MIXED = "keras mixed_bfloat16"

# What `mp.wrap` is told about 16-bit variables.
MASTERS: dict[str, dict[str, Any]] = {
    "masters float32": {"storage": "float32"},
    "masters remainder": {"storage": "remainder"},
    "stochastic": {"master_weights": False, "rounding": "stochastic"},
}

LOST_WEIGHTS = 1000
LOST_STEPS = 1000
# A quarter of the distance from 1 to the next number below it.
LOST_UPDATES = {"bfloat16": Fraction(1, 2**10), "float16": Fraction(1, 2**13)}
# The arguments of `mp.MasterWeightOptimizer`; None is Keras's bare optimizer.
LOST: list[tuple[str, str, dict[str, Any] | None]] = [
    ("bfloat16", "keras", None),
    ("bfloat16", "masters float32", {"storage": "float32"}),
    ("bfloat16", "masters remainder", {"storage": "remainder"}),
    ("bfloat16", "stochastic", {"storage": None, "rounding": "stochastic"}),
    ("float16", "keras", None),
    ("float16", "masters float32", {"storage": "float32"}),
]

BATCH = 50  # images a step: 80 steps an epoch
LEARNING_RATE = 1e-3
FLOAT16_SEEDS = 1  # half a second a step on CPUs, minutes a seed

MEMORY_LAYERS = 6
MEMORY_BATCH = 8
MEMORY_STEPS = 3
WARM_UP_PARAMETERS = 400_000  # the fewest of which XLA compiles the update

MICRO_BATCHES = 4

QUICK_MASTERS = ("masters remainder",)
QUICK_MEMORY = (KERAS_MIXED, *QUICK_MASTERS)
QUICK_WIDTH = 256

QUICK = {
    "seeds": 1,
    "epochs": 1,
    "images": 100,
    "parameters": 10**6,
    "processes": 1,
    "rounds": 2,
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a model is made and compiled.

    Args:
        policy: Of its layers.
        masters: What `mp.wrap` is told; `None` for Keras by itself.
        beta_2: Of Adam, where accuracy is measured.
    """

    policy: str
    masters: dict[str, Any] | None = None
    beta_2: float = 0.999

    def compiled(
        self,
        make: Callable[[], keras.Model],
        optimizer: Optimizer,
        loss: keras.losses.Loss,
        metrics: list[str] | None = None,
    ) -> keras.Model:
        """Returns a model that trains in this way."""
        with mp.policy_scope(self.policy):
            model = make()
        if self.masters is None:
            model.compile(optimizer, loss, metrics=metrics)
        else:
            wrapped = mp.wrap(
                optimizer, dynamic=False, initial_scale=1.0, **self.masters
            )
            mp.compile(model, wrapped, loss, metrics=metrics)
        return model


VARIANTS = {
    "keras float32": Variant("float32"),
    KERAS_MIXED: Variant("mixed_bfloat16"),
    **{name: Variant("bfloat16", told) for name, told in MASTERS.items()},
}
# All but the head in 16 bits, the slots of Adam as well. Its `beta_2` of 0.999
# is 1 in bfloat16 and its step 0, so that the head alone learns.
BARE = {
    "keras bfloat16": Variant("bfloat16"),
    "keras bfloat16 (0.99)": Variant("bfloat16", beta_2=0.99),
    "keras float16": Variant("float16"),
}


def lost(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields where weights end that should have gone down step by step."""
    del arguments  # it is always the same task
    for dtype, name, options in LOST:
        update = LOST_UPDATES[dtype]
        exact = float(1 - LOST_STEPS * update)
        weight, value = _descended(dtype, float(update), options)
        deviation = float(np.abs(value - exact).max())
        yield (
            {
                "dtype": dtype,
                "variant": name,
                "exact": exact,
                "mean_weight": weight.mean(),
                "largest_deviation": deviation,
            },
            f"{dtype:<10}{name:<19}{exact:12.7f}{weight.mean():12.7f}"
            f"{deviation:13.7f}",
        )


def _descended(
    dtype: str, gradient: float, options: dict[str, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights after the steps, and their float32 values, in float64."""
    weight = keras.Variable(np.ones(LOST_WEIGHTS), dtype=dtype)
    optimizer: Optimizer = keras.optimizers.SGD(1.0)
    if options is not None:
        optimizer = mp.MasterWeightOptimizer(optimizer, **options)
    optimizer.build([weight])
    gradients = tf.fill([LOST_WEIGHTS], tf.cast(gradient, dtype))

    @tf.function
    def descend() -> None:
        for _ in tf.range(LOST_STEPS):
            optimizer.apply([gradients], [weight])

    descend()
    value = weight if options is None else optimizer.master_of(weight)
    return _float64(weight), _float64(value)


def _float64(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(x).astype("float64")


def cnn() -> keras.Model:
    """Returns a network for MNIST, with a float32 head."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(10, dtype="float32"),
        ]
    )


def accuracy(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields how many test images each variant recognizes."""
    (images, labels), test_data = mnist.load()
    train_data = images[: arguments.images], labels[: arguments.images]
    baseline: list[float] = []
    masters: dict[str, list[np.ndarray]] = {name: [] for name in MASTERS}
    for name, variant in {**VARIANTS, **BARE}.items():
        accuracies, moved = [], []
        for seed in range(_seed_count(variant, arguments.seeds)):
            model, start = trained(variant, train_data, seed, arguments.epochs)
            _, right = model.evaluate(*test_data, batch_size=500, verbose=0)
            accuracies.append(right)
            moved.append(_share_moved(model, start))
            if name in MASTERS:
                masters[name].append(_masters(model))
        baseline = baseline or accuracies
        yield _accuracy_row(name, accuracies, moved, baseline)
    spread = max(baseline) - min(baseline)
    yield (
        {"variant": "keras float32", "spread": spread},
        f"keras float32, from seed to seed: {spread * 100:.2f} points",
    )
    same = _same_bits(masters["masters float32"], masters["masters remainder"])
    yield (
        {"variant": "masters", "bit_identical": same},
        "masters in float32 and with remainders, bit by bit the same at the "
        f"end: {sum(same)} of {len(same)} seeds",
    )


def _seed_count(variant: Variant, seeds: int) -> int:
    if variant.policy == "float16":
        return min(seeds, FLOAT16_SEEDS)
    return seeds


def trained(
    variant: Variant,
    data: tuple[np.ndarray, np.ndarray],
    seed: int,
    epochs: int,
) -> tuple[keras.Model, list[np.ndarray]]:
    """Returns a trained model, and the weights it started from.

    The start is the same for a seed, in float32 before it is rounded, and so is
    the order of the images.
    """
    keras.utils.set_random_seed(seed)
    start = cnn().get_weights()
    optimizer = keras.optimizers.Adam(LEARNING_RATE, beta_2=variant.beta_2)
    model = variant.compiled(cnn, optimizer, _loss(), ["accuracy"])
    model.set_weights(start)
    random = np.random.default_rng(seed)
    order = np.concatenate(
        [random.permutation(len(data[0])) for _ in range(epochs)]
    )
    start = model.get_weights()
    model.fit(
        *(each[order] for each in data),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    )
    return model, start


def _accuracy_row(
    name: str,
    accuracies: Sequence[float],
    moved: Sequence[float],
    baseline: Sequence[float],
) -> Row:
    mean = statistics.mean(accuracies)
    difference = statistics.mean(
        a - b for a, b in zip(accuracies, baseline, strict=False)
    )
    return (
        {
            "variant": name,
            "accuracies": list(accuracies),
            "mean": mean,
            "minimum": min(accuracies),
            "maximum": max(accuracies),
            "to_float32": difference,
            "share_moved": statistics.mean(moved),
        },
        f"{name:<22}{len(accuracies):2d}{mean:8.2%} "
        f"({min(accuracies):.1%}-{max(accuracies):.1%})"
        f"{difference * 100:+8.2f}{statistics.mean(moved):8.1%}",
    )


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _share_moved(model: keras.Model, start: Sequence[np.ndarray]) -> float:
    """Returns the share of weights, those of the head left out, that moved."""
    pairs = list(zip(model.get_weights(), start, strict=True))
    body = pairs[: -len(model.layers[-1].weights)]
    moved = sum(np.count_nonzero(after != before) for after, before in body)
    return moved / sum(before.size for _, before in body)


def _masters(model: keras.Model) -> np.ndarray:
    """Returns all masters of a model, one after another."""
    masters = model.optimizer.master_weights(model).values()
    return np.concatenate([np.ravel(master) for master in masters])


def _same_bits(
    some: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> list[bool]:
    """Returns for each pair of float32 arrays whether they have equal bits."""
    return [
        np.array_equal(a.view("int32"), b.view("int32"))
        for a, b in zip(some, others, strict=True)
    ]


def memory(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the bytes a parameter of each variant."""
    runs = {
        name: [
            _in_a_process(name, arguments.parameters)
            for _ in range(arguments.processes)
        ]
        for name in (QUICK_MEMORY if arguments.quick else VARIANTS)
    }
    peaks = {
        name: [run["peak"] for run in runs_of_one]
        for name, runs_of_one in runs.items()
    }
    baseline = statistics.median(peaks[KERAS_MIXED])
    for name, (run, *_) in runs.items():
        held, peak = run["held"], statistics.median(peaks[name])
        yield (
            {
                "variant": name,
                "parameters": run["parameters"],
                "held": held,
                "peaks": peaks[name],
                "peak": peak,
                "to_baseline": peak / baseline,
            },
            f"{name:<22}{held:7.2f}{peak:8.2f} "
            f"({min(peaks[name]):.2f}-{max(peaks[name]):.2f})"
            f"{peak / baseline:7.2f}",
        )


def _in_a_process(name: str, parameters: int) -> dict[str, float]:
    """Returns `bytes_a_parameter` of a variant in a process of its own.

    TensorFlow keeps memory that it has once had, so that a process sees no more
    than its first peak.
    """
    command = [sys.executable, __file__, "--memory-of", name]
    command += ["--parameters", str(parameters)]
    output = subprocess.check_output(command, text=True)
    return json.loads(output.splitlines()[-1])


def bytes_a_parameter(variant: Variant, parameters: int) -> dict[str, float]:
    """Returns what the variables take, and what steps take at their peak.

    The peak counts from what was resident before the model was made. A small
    model is trained before, so that code that is loaded late is resident.
    """
    _after_steps(variant, WARM_UP_PARAMETERS)
    with device_memory.PeakMemory() as before:
        pass  # the peak of nothing is what is resident
    with device_memory.PeakMemory() as peak:
        model = _after_steps(variant, parameters)
    if before.bytes is None or peak.bytes is None:
        raise RuntimeError("Peak memory can be read under Linux or on a GPU.")
    count = model.count_params()
    variables = [*model.variables, *model.optimizer.variables]
    return {
        "parameters": count,
        "held": sum(map(_byte_count, variables)) / count,
        "peak": (peak.bytes - before.bytes) / count,
    }


def _after_steps(variant: Variant, parameters: int) -> keras.Model:
    """Returns a model of dense layers that has made a few steps.

    Their width is a power of two: TensorFlow's allocator leaves gaps between
    tensors of other sizes, which differ from run to run.
    """
    width = 2 ** round(math.log2(parameters / MEMORY_LAYERS) / 2)
    model = variant.compiled(
        lambda: keras.Sequential(
            [
                keras.Input((width,)),
                *(layers.Dense(width) for _ in range(MEMORY_LAYERS)),
            ]
        ),
        keras.optimizers.Adam(),
        keras.losses.MeanSquaredError(),
    )
    model.optimizer.build(model.trainable_variables)
    x = np.ones((MEMORY_BATCH, width), "float32")
    for _ in range(MEMORY_STEPS):
        model.train_on_batch(x, x)
    return model


def _byte_count(variable: keras.Variable) -> int:
    itemsize = tf.dtypes.as_dtype(variable.dtype).size
    return itemsize * int(np.prod(variable.shape, dtype="int64"))


def speed(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the times of a training step, in one interleaved run.

    Those of several micro-batches are divided by their number; the weights
    change at the last one.
    """
    sizes = dict(train_step.SIZES["mlp"])
    if arguments.quick:
        sizes["width"] = QUICK_WIDTH
    masters = QUICK_MASTERS if arguments.quick else tuple(MASTERS)
    make = functools.partial(train_step.mlp, **sizes)
    calls = {
        (name, 1): train_step.make_step(model)
        for name, model in _models(make, masters).items()
    }
    for name in (KERAS_MIXED, *masters):
        optimizer = keras.optimizers.Adam(
            gradient_accumulation_steps=MICRO_BATCHES
        )
        model = VARIANTS[name].compiled(make, optimizer, _loss())
        step = train_step.make_step(model)
        calls[name, MICRO_BATCHES] = functools.partial(_repeat, step)
    times = interleaved(calls, arguments.rounds)
    for (name, count), of_calls in times.items():
        ratio = Ratio.of(
            [time / count for time in of_calls],
            [time / count for time in times[KERAS_MIXED, count]],
        )
        yield (
            {
                "variant": name,
                "micro_batches": count,
                **dataclasses.asdict(ratio),
            },
            f"{name:<22}{count:2d} {ratio}",
        )


def _models(
    make: Callable[[], keras.Model], masters: Sequence[str]
) -> dict[str, keras.Model]:
    """Returns the models that update at every step, the baseline first."""
    models = {
        KERAS_MIXED: train_step.keras_model(make, "mixed_bfloat16"),
        "keras float32": train_step.keras_model(make, "float32"),
        "ours mixed_bfloat16": train_step.our_model(make, "mixed_bfloat16"),
    }
    for name in masters:
        model = VARIANTS[name].compiled(make, keras.optimizers.Adam(), _loss())
        _check_dtypes(model)
        models[name] = model
    return models


def _check_dtypes(model: keras.Model) -> None:
    """Raises unless all variables are bfloat16, and the head's float32."""
    dtypes = [[v.dtype for v in each.weights] for each in model.layers]
    expected = [["bfloat16"] * len(each) for each in dtypes[:-1]]
    expected.append(["float32"] * len(dtypes[-1]))
    if dtypes != expected:
        raise RuntimeError(f"The variables of the layers are {dtypes}.")


def _repeat(step: Callable[[], object]) -> None:
    for _ in range(MICRO_BATCHES):
        step()


# What makes the rows of each section, and what stands above them.
SECTIONS: dict[str, tuple[Callable[..., Iterator[Row]], str]] = {
    "lost": (
        lost,
        f"{'':<29}{'exact':>12}{'mean weight':>12}{'off, at most':>13}",
    ),
    "accuracy": (
        accuracy,
        "seeds, mean (min-max) share of test images, points to float32 of "
        "the same\nseeds, share of weights that moved",
    ),
    "memory": (
        memory,
        "bytes a parameter, held and at the peak: median (min-max) of "
        f"processes,\nratio to {KERAS_MIXED}",
    ),
    "speed": (
        speed,
        "micro-batches, median (min-max) of the ratios, and median time of one",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    arguments = _arguments(argv)
    if arguments.memory_of:
        variant = VARIANTS[arguments.memory_of]
        print(json.dumps(bytes_a_parameter(variant, arguments.parameters)))
        return
    # Many models are many traces, which are no mistake.
    tf.get_logger().setLevel("ERROR")
    for key, value in machine().items():
        print(f"{key + ':':<12}{value}")
    figures = []
    for section in arguments.sections:
        make_rows, header = SECTIONS[section]
        print(f"\n{section}: {header}", flush=True)
        for row, text in make_rows(arguments):
            print(text, flush=True)
            figures.append({"section": section, **row})
    if arguments.json:
        write_json(arguments.json, figures)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS)
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument(
        "--images", type=int, default=mnist.TRAIN_SIZE, help="to train on"
    )
    parser.add_argument(
        "--parameters", type=int, default=10**8, help="about; for memory"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=3,
        help="for each variant of memory",
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--quick", action="store_true", help="everything small: a smoke test"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    # What `_in_a_process` asks for.
    parser.add_argument("--memory-of", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


if __name__ == "__main__":
    main()
