"""What a profile is made of: plain numbers, all of them measured."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """What forward and backward pass of one batch do.

    Args:
        ops: By dtype, the operations that compute floats.
        casts: Casts to or from 16 bits.
        cast_bytes: What these read and write.
        multiply_adds: By dtype, those of matrix products and convolutions.
        unknown_products: Products of unknown size, which are not in there.
    """

    ops: Mapping[str, int]
    casts: int
    cast_bytes: int
    multiply_adds: Mapping[str, int]
    unknown_products: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpTimes:
    """What `tf.profiler` says of a step; times of threads, which overlap.

    Args:
        milliseconds: By dtype, of the operations that compute floats; under
            `"other"` of those whose dtype is not known.
        cast_share: Of the time of all operations, that of casts.
    """

    milliseconds: Mapping[str, float]
    cast_share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One precision, as measured.

    Args:
        policy: Its name; `"as it is"` for the precision of the model.
        jit_compile: Whether XLA compiles the step.
        step_ms: Median time of a training step.
        ratio: Median over the rounds of its time by that of the first variant.
        ratio_p10: A tenth of the rounds have a smaller ratio.
        ratio_p90: A tenth have a greater one.
        forward_ms: Median time of the loss, without gradients.
        backward_ms: What the gradients take in addition, the median of the
            differences in each round; 0 if that is below 0.
        optimizer_ms: What the step takes in addition: the update, and to see
            whether it is to be skipped. Likewise.
        graph: What forward and backward pass do.
        op_times: What operations take; `None` where it cannot be known.
        ceiling_ms: What the multiply-adds would take at the speed of large
            matrix products; `None` where that is not known.
        below_noise: The parts, `"backward"` or `"optimizer"`, whose difference
            was below 0: they take less than the noise of this machine.
    """

    policy: str
    jit_compile: bool
    step_ms: float
    ratio: float
    ratio_p10: float
    ratio_p90: float
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    graph: GraphFacts
    op_times: OpTimes | None = None
    ceiling_ms: float | None = None
    below_noise: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The policy, and XLA if it compiles."""
        return f"{self.policy}, XLA" if self.jit_compile else self.policy

    @property
    def ceiling_share(self) -> float | None:
        """The time at the ceiling by the time of the step."""
        if not self.ceiling_ms:
            return None
        return self.ceiling_ms / self.step_ms

    @property
    def optimizer_share(self) -> float:
        """The time of the optimizer by that of the step."""
        return self.optimizer_ms / self.step_ms


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchTime:
    """Steps of one size of batch.

    Args:
        batch_size: The examples in a step.
        step_ms: Median time of a step.
        examples_per_second: Examples by that time.
        ceiling_share: As that of a `Variant`.
    """

    batch_size: int
    step_ms: float
    examples_per_second: float
    ceiling_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """All that is measured, before it is judged.

    Args:
        variants: Float32 first, unless other policies were given.
        current: The place of the variant that the model is in now, or `None`.
        batch_size: The examples in a step.
        batches: Other sizes, of the variant `batches_of`.
        batches_of: The label of a variant; empty for none.
        ceiling: By dtype, multiply-adds a second of large matrix products.
        batch_statistics: The paths of layers that average over a batch.
    """

    variants: tuple[Variant, ...]
    current: int | None
    batch_size: int
    batches: tuple[BatchTime, ...] = ()
    batches_of: str = ""
    ceiling: Mapping[str, float] = dataclasses.field(default_factory=dict)
    batch_statistics: tuple[str, ...] = ()
