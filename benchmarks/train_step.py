"""What `convert` and `compile` gain: one training step, ours and Keras's own.

    python benchmarks/train_step.py                      # four models
    python benchmarks/train_step.py --models mlp --float16

Each model in float32 and mixed_bfloat16 as Keras trains it, and converted by
`mp.convert(model, "mixed_bfloat16")`: with `mp.compile`, and with
`mp.TrainStep` and a loss scale; Adam in all. The ratios are to Keras's
mixed_bfloat16 without a loss scale, in one interleaved run; below 1 is faster.
Beside them is the number of casts between floats in the optimized graph. The
second table is of 8 micro-batches in one `mp.TrainStep`, to 8 steps of Keras's.
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
from keras import layers
from tensorflow.python.eager import context
from timing import Ratio
from timing import interleaved
from timing import machine
from timing import write_json

import tf_mixprec as mp

CLASSES = 10
BASELINE = "keras bfloat16"

# The sizes of each model, by the argument of the function of that name.
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 256, "features": 784, "width": 2048},
    "cnn": {"batch": 64, "pixels": 32, "width": 32},
    "transformer": {"batch": 16, "steps": 128, "width": 256, "blocks": 4},
    "lstm": {"batch": 64, "steps": 64, "width": 256},
}

Call = Callable[[], object]


def mlp(batch: int, features: int, width: int) -> keras.Model:
    """Returns three dense layers."""
    return keras.Sequential(
        [
            keras.Input((features,), batch),
            layers.Dense(width, "relu"),
            layers.Dense(width, "relu"),
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )


def cnn(batch: int, pixels: int, width: int) -> keras.Model:
    """Returns six convolutions in three residual blocks."""
    inputs = keras.Input((pixels, pixels, 3), batch)
    x = layers.Conv2D(width, 3, padding="same")(inputs)
    for block in range(3):
        shortcut = x = layers.Conv2D(
            width << block, 3, 2 if block else 1, padding="same"
        )(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(width << block, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([shortcut, x])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, dtype="float32")(x))


def transformer(batch: int, steps: int, width: int, blocks: int) -> keras.Model:
    """Returns an encoder with four heads, on features."""
    inputs = x = keras.Input((steps, width), batch)
    for _ in range(blocks):
        attention = layers.MultiHeadAttention(4, width // 4)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attention]))
        hidden = layers.Dense(4 * width, "gelu")(x)
        x = layers.Add()([x, layers.Dense(width)(hidden)])
        x = layers.LayerNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, dtype="float32")(x))


def lstm(batch: int, steps: int, width: int) -> keras.Model:
    """Returns one recurrent layer."""
    return keras.Sequential(
        [
            keras.Input((steps, width), batch),
            layers.LSTM(width),
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )


MODELS: dict[str, Callable[..., keras.Model]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "lstm": lstm,
}


def keras_model(make: Callable[[], keras.Model], policy: str) -> keras.Model:
    """Returns a model as Keras trains it."""
    with mp.policy_scope(policy):
        model = make()
    model.compile("adam", _loss())
    return model


def our_model(make: Callable[[], keras.Model], policy: str) -> keras.Model:
    """Returns a float32 model, converted."""
    model = mp.convert(make(), policy)
    mp.compile(model, "adam", _loss())
    return model


def our_step(
    make: Callable[[], keras.Model], policy: str, accumulation_steps: int = 1
) -> keras.Model:
    """Returns a float32 model, converted, that a `TrainStep` trains."""
    step = mp.TrainStep(
        mp.convert(make(), policy),
        mp.wrap("adam"),
        _loss(),
        accumulation_steps=accumulation_steps,
    )
    return step.model


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


VARIANTS: dict[str, tuple[Callable[..., keras.Model], str]] = {
    "keras float32": (keras_model, "float32"),
    BASELINE: (keras_model, "mixed_bfloat16"),
    "ours bfloat16": (our_model, "mixed_bfloat16"),
    "step bfloat16": (our_step, "mixed_bfloat16"),
}
FLOAT16: dict[str, tuple[Callable[..., keras.Model], str]] = {
    "keras float16": (keras_model, "mixed_float16"),
    "ours float16": (our_model, "mixed_float16"),
    "step float16": (our_step, "mixed_float16"),
}
MICRO_BATCHES = 8


def make_step(model: keras.Model, micro_batches: int = 1) -> Call:
    """Returns a call of the train function, on constant data.

    Args:
        model: The compiled model, for batches of one size.
        micro_batches: How many of these a batch has.
    """
    size, *rest = model.inputs[0].shape
    shape = (size * micro_batches, *rest)
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype("float32")
    y = random.integers(0, CLASSES, shape[0])
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(x, y)  # builds the loss and its metric
    model.make_train_function(force=True)
    return lambda: model.train_function(data)["loss"].numpy()


def cast_count(step: Call) -> int:
    """Returns how many casts between floats a train function makes.

    They are counted in the graph that Grappler has left, which there is on the
    first call: in the largest one, the step. A loop counts once; what XLA
    compiles, most of the optimizer, does not.
    """
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # what is left of other functions
        step()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [f.post_optimization_graph.node for f in metadata.function_graphs]
    return sum(
        tf.dtypes.as_dtype(node.attr["SrcT"].type).is_floating
        and tf.dtypes.as_dtype(node.attr["DstT"].type).is_floating
        for node in max(graphs, key=len)
        if node.op == "Cast"
    )


def rows(
    name: str, variants: Sequence[str], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields the figures of each variant of a model."""
    steps, casts = {}, {}
    for variant in variants:
        make_model, policy = {**VARIANTS, **FLOAT16}[variant]
        keras.utils.set_random_seed(0)
        model = make_model(lambda: MODELS[name](**SIZES[name]), policy)
        steps[variant] = make_step(model)
        casts[variant] = cast_count(steps[variant])
    times = interleaved(steps, rounds)
    for variant in variants:
        ratio = Ratio.of(times[variant], times[BASELINE])
        yield {
            "model": name,
            "variant": variant,
            "casts": casts[variant],
            **dataclasses.asdict(ratio),
            "text": str(ratio),
        }


def micro_rows(name: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields the figures of micro-batches in one step, and of as many steps."""
    steps: dict[str, Call] = {}
    keras.utils.set_random_seed(0)
    stock = make_step(
        keras_model(lambda: MODELS[name](**SIZES[name]), "mixed_bfloat16")
    )

    def stock_steps() -> None:
        for _ in range(MICRO_BATCHES):
            stock()

    baseline = f"{MICRO_BATCHES} keras steps"
    steps[baseline] = stock_steps
    steps["one step"] = make_step(
        our_step(
            lambda: MODELS[name](**SIZES[name]), "mixed_bfloat16", MICRO_BATCHES
        ),
        MICRO_BATCHES,
    )
    times = interleaved(steps, rounds)
    for variant in steps:
        ratio = Ratio.of(times[variant], times[baseline])
        yield {
            "model": name,
            "variant": variant,
            **dataclasses.asdict(ratio),
            "text": str(ratio),
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS)
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--float16",
        action="store_true",
        help="also mixed_float16: slow on CPUs",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    arguments = parser.parse_args(argv)

    for key, value in machine().items():
        print(f"{key + ':':<12}{value}")
    print("\nmedian (min-max) of the ratios, and median time")
    variants = [*VARIANTS, *(FLOAT16 if arguments.float16 else ())]
    figures = []
    for name in arguments.models:
        for row in rows(name, variants, arguments.rounds):
            text = row.pop("text")
            print(
                f"{name:<13}{row['variant']:<16} {text} "
                f"{row['casts']:5d} casts",
                flush=True,
            )
            figures.append(row)
    print(f"\n{MICRO_BATCHES} micro-batches")
    for name in arguments.models:
        for row in micro_rows(name, max(2, arguments.rounds // 4)):
            text = row.pop("text")
            print(f"{name:<13}{row['variant']:<16} {text}", flush=True)
            figures.append(row)
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
