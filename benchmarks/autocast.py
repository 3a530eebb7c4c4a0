"""What `mp.autocast` gains for a raw TensorFlow transformer.

    python benchmarks/autocast.py
    python benchmarks/autocast.py --rounds 60 --json figures.json

An encoder without a Keras layer, its attention once of `tf.matmul` and once of
`tf.einsum`: forward and backward in one `tf.function`. In float32, under
`mp.autocast`, and under TensorFlow's own `auto_mixed_precision` rewrite; the
ratios are to float32, in one interleaved run; below 1 is faster. Then how long
it takes to trace the step.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from timing import Ratio
from timing import interleaved
from timing import machine
from timing import write_json

import tf_mixprec as mp

BATCH, STEPS, WIDTH, HEADS, BLOCKS = 16, 128, 256, 4, 4
BASELINE = "float32"
REWRITE = "auto_mixed_precision_onednn_bfloat16"

Call = Callable[[], object]


class Encoder(tf.Module):
    """A transformer's encoder of raw TensorFlow.

    Args:
        einsum: Whether the attention is written with `tf.einsum`.
    """

    def __init__(self, einsum: bool):
        super().__init__()
        self.einsum = einsum
        random = np.random.default_rng(0)

        def weight(*shape: int) -> tf.Variable:
            value = random.normal(size=shape) / np.sqrt(shape[0])
            return tf.Variable(value.astype("float32"))

        self.blocks = [
            {
                "qkv": [weight(WIDTH, WIDTH) for _ in range(3)],
                "out": weight(WIDTH, WIDTH),
                "up": weight(WIDTH, 4 * WIDTH),
                "up_bias": tf.Variable(tf.zeros(4 * WIDTH)),
                "down": weight(4 * WIDTH, WIDTH),
                "down_bias": tf.Variable(tf.zeros(WIDTH)),
                "gain": [tf.Variable(tf.ones(WIDTH)) for _ in range(2)],
                "shift": [tf.Variable(tf.zeros(WIDTH)) for _ in range(2)],
            }
            for _ in range(BLOCKS)
        ]
        self.head = weight(WIDTH, 10)

    def attention(self, x: tf.Tensor, block: Any) -> tf.Tensor:
        """Returns what the heads return, `[batch, steps, width]`."""
        size = WIDTH // HEADS
        q, k, v = (
            tf.reshape(tf.matmul(x, w), (-1, STEPS, HEADS, size))
            for w in block["qkv"]
        )
        if self.einsum:
            scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(size)
            mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)
        else:
            q, k, v = (tf.transpose(each, (0, 2, 1, 3)) for each in (q, k, v))
            scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(size)
            mixed = tf.matmul(tf.nn.softmax(scores), v)
            mixed = tf.transpose(mixed, (0, 2, 1, 3))
        return tf.matmul(tf.reshape(mixed, (-1, STEPS, WIDTH)), block["out"])

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Returns the mean cross-entropy."""
        for block in self.blocks:
            normal = normalized(x, block["gain"][0], block["shift"][0])
            x += self.attention(normal, block)
            normal = normalized(x, block["gain"][1], block["shift"][1])
            hidden = tf.matmul(normal, block["up"]) + block["up_bias"]
            hidden = tf.nn.gelu(hidden, approximate=True)
            x += tf.matmul(hidden, block["down"]) + block["down_bias"]
        logits = tf.matmul(tf.reduce_mean(x, 1), self.head)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        )


def normalized(x: tf.Tensor, gain: tf.Variable, shift: tf.Variable) -> Any:
    """Returns a layer normalization."""
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, gain, 1e-5)


def make_step(einsum: bool, wrap: Callable) -> Any:
    """Returns a function of a batch to the gradients of the encoder."""
    encoder = Encoder(einsum)
    loss_of = wrap(encoder.loss)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        gradients = tape.gradient(loss, encoder.trainable_variables)
        # A sum of each, so that no gradient is left out of the graph.
        return loss, [tf.reduce_sum(each) for each in gradients]

    return step


VARIANTS: dict[str, Callable] = {
    BASELINE: lambda function: function,
    "autocast": lambda function: mp.autocast(function, "bfloat16"),
    "TensorFlow's rewrite": lambda function: function,
}


def data() -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a batch."""
    random = np.random.default_rng(1)
    x = random.normal(size=(BATCH, STEPS, WIDTH)).astype("float32")
    return tf.constant(x), tf.constant(random.integers(0, 10, BATCH))


def make_call(step: Any, variant: str) -> Call:
    """Returns a call of a step, its graph optimized."""
    x, y = data()
    # A call is made with what the option is at that time.
    options = {REWRITE: variant == "TensorFlow's rewrite"}

    def call() -> object:
        tf.config.optimizer.set_experimental_options(options)
        return step(x, y)[0].numpy()

    return call


def rows(einsum: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields the figures of each variant."""
    name = "einsum" if einsum else "matmul"
    calls = {
        variant: make_call(make_step(einsum, wrap), variant)
        for variant, wrap in VARIANTS.items()
    }
    times = interleaved(calls, rounds)
    for variant in VARIANTS:
        ratio = Ratio.of(times[variant], times[BASELINE])
        yield {
            "attention": name,
            "variant": variant,
            **dataclasses.asdict(ratio),
            "text": str(ratio),
        }


TRACED: dict[str, Callable] = {
    BASELINE: VARIANTS[BASELINE],
    "float32, tf.function": tf.function,
    "autocast": VARIANTS["autocast"],
}


def trace_times(rounds: int) -> dict[str, list[float]]:
    """Returns how long it takes to trace the step, in milliseconds.

    Also with the loss in a `tf.function` of its own, as it is in autocast.
    """
    x, y = data()
    times: dict[str, list[float]] = {variant: [] for variant in TRACED}
    for _ in range(rounds):
        for variant, some in times.items():
            step = make_step(False, TRACED[variant])
            start = time.perf_counter()
            step.get_concrete_function(x, y)
            some.append((time.perf_counter() - start) * 1000)
    return times


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="FILE", help="also write the figures")
    arguments = parser.parse_args(argv)

    for key, value in machine().items():
        print(f"{key + ':':<12}{value}")
    print("\nmedian (min-max) of the ratios, and median time")
    figures = []
    for einsum in (False, True):
        for row in rows(einsum, arguments.rounds):
            text = row.pop("text")
            print(
                f"{row['attention']:<8}{row['variant']:<22} {text}", flush=True
            )
            figures.append(row)
    times = trace_times(max(5, arguments.rounds // 4))
    for variant in TRACED:
        ratio = Ratio.of(times[variant], times[BASELINE])
        print(f"{'trace':<8}{variant:<22}", ratio)
        figures.append(
            {
                "attention": "trace",
                "variant": variant,
                **dataclasses.asdict(ratio),
            }
        )
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
