"""Measures what a profile is made of."""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.diagnostics.profile.graph import dtypes_by_name
from tf_mixprec.diagnostics.profile.ops import op_times
from tf_mixprec.diagnostics.profile.records import BatchTime
from tf_mixprec.diagnostics.profile.records import Measured
from tf_mixprec.diagnostics.profile.records import Variant
from tf_mixprec.diagnostics.profile.steps import BACKWARD
from tf_mixprec.diagnostics.profile.steps import FORWARD
from tf_mixprec.diagnostics.profile.steps import OPTIMIZER
from tf_mixprec.diagnostics.profile.steps import STEP
from tf_mixprec.diagnostics.profile.steps import ProfiledSteps
from tf_mixprec.diagnostics.profile.timing import difference
from tf_mixprec.diagnostics.profile.timing import interleaved
from tf_mixprec.diagnostics.profile.timing import ratio
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.policies import hardware
from tf_mixprec.policies import matrix_timing
from tf_mixprec.training import keras_internals
from tf_mixprec.training.sixteen_bits import path_of

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_BATCHES_SHARE = 0.25  # of the time there is


def measured(
    steps: Sequence[ProfiledSteps],
    current: int | None,
    batch: Batch,
    batch_sizes: Sequence[int],
    rounds: int,
    seconds: float,
) -> Measured:
    """Returns the times of steps, and what they are compared with.

    Args:
        steps: One for each variant.
        current: The place of the one the model is in now, or `None`.
        batch: What they were made with.
        batch_sizes: Other sizes to try.
        rounds: How many rounds there are at the most.
        seconds: How long to go on.
    """
    left = seconds * (1 - _BATCHES_SHARE) if batch_sizes else seconds
    ceiling = _ceiling()
    variants = _variants(steps, rounds, left, ceiling)
    size = _size(batch)
    fastest = min(range(len(steps)), key=lambda i: variants[i].ratio)
    batches: tuple[BatchTime, ...] = ()
    if batch_sizes:
        batches = _batches(
            steps[fastest],
            variants[fastest],
            batch,
            sorted({*batch_sizes, size}),
            rounds,
            seconds * _BATCHES_SHARE,
        )
    return Measured(
        variants=variants,
        current=current,
        batch_size=size,
        batches=batches,
        batches_of=variants[fastest].label if batches else "",
        ceiling=ceiling,
    )


def batch_statistics(model: Any) -> tuple[str, ...]:
    """Returns the paths of layers that average over the batch."""
    return tuple(
        path_of(layer)
        for layer in keras_internals.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    )


def of_size(batch: Batch, size: int) -> Batch:
    """Returns a batch of so many examples, in turn those of another one."""
    rows = tf.range(size) % _size(batch)
    return keras.tree.map_structure(
        lambda each: None if each is None else tf.gather(each, rows), batch
    )


def _size(batch: Batch) -> int:
    return int(keras.tree.flatten(batch[0])[0].shape[0])


def _ceiling() -> dict[str, float]:
    """Returns by dtype the multiply-adds a second of large products."""
    device = "CPU:0" if hardware.runs_on_cpu() else "GPU:0"
    size, milliseconds = matrix_timing.measure(device)
    return {
        dtype: size**3 / (each / 1000.0) for dtype, each in milliseconds.items()
    }


def _variants(
    steps: Sequence[ProfiledSteps],
    rounds: int,
    seconds: float,
    ceiling: Mapping[str, float],
) -> tuple[Variant, ...]:
    calls = {
        (index, part): call
        for index, each in enumerate(steps)
        for part, call in each.calls().items()
    }
    times = interleaved(calls, rounds, seconds)
    return tuple(
        _variant(each, index, times, ceiling, calls[index, BACKWARD])
        for index, each in enumerate(steps)
    )


def _variant(
    steps: ProfiledSteps,
    index: int,
    times: Mapping[tuple[int, str], Sequence[float]],
    ceiling: Mapping[str, float],
    backward: Any,
) -> Variant:
    forward, backward_too, step = (
        times[index, part] for part in (FORWARD, BACKWARD, STEP)
    )
    parts = {
        BACKWARD: difference(backward_too, forward),
        OPTIMIZER: difference(step, backward_too),
    }
    ratios = ratio(step, times[0, STEP])
    of_ops = None
    if not steps.jit_compile:
        of_ops = op_times(backward, dtypes_by_name(steps.traced))
    return Variant(
        policy=steps.label,
        jit_compile=steps.jit_compile,
        step_ms=statistics.median(step),
        ratio=ratios.median,
        ratio_p10=ratios.p10,
        ratio_p90=ratios.p90,
        forward_ms=statistics.median(forward),
        backward_ms=max(0.0, parts[BACKWARD]),
        optimizer_ms=max(0.0, parts[OPTIMIZER]),
        below_noise=tuple(part for part, ms in parts.items() if ms < 0.0),
        graph=steps.graph,
        op_times=of_ops,
        ceiling_ms=ceiling_ms(steps.graph.multiply_adds, ceiling),
    )


def ceiling_ms(
    multiply_adds: Mapping[str, int], ceiling: Mapping[str, float]
) -> float | None:
    """Returns what multiply-adds take at the ceiling; `None` if not known.

    Args:
        multiply_adds: By dtype.
        ceiling: By dtype, how many a second.
    """
    if not multiply_adds or not set(multiply_adds) <= set(ceiling):
        return None
    return sum(n / ceiling[d] for d, n in multiply_adds.items()) * 1000.0


def _batches(
    steps: ProfiledSteps,
    variant: Variant,
    batch: Batch,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
) -> tuple[BatchTime, ...]:
    calls = {size: steps.step_of(of_size(batch, size)) for size in sizes}
    times = interleaved(calls, rounds, seconds)
    found = []
    for size in sizes:
        milliseconds = statistics.median(times[size])
        share = None
        if variant.ceiling_ms is not None:
            # Multiply-adds are as many as examples.
            share = variant.ceiling_ms * size / _size(batch) / milliseconds
        found.append(
            BatchTime(
                batch_size=size,
                step_ms=milliseconds,
                examples_per_second=size / milliseconds * 1000.0,
                ceiling_share=share,
            )
        )
    return tuple(found)
