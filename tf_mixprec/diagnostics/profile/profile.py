"""`profile`: how long a step takes in each precision, and what slows it."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.profile import blocks
from tf_mixprec.diagnostics.profile import findings
from tf_mixprec.diagnostics.profile import measuring
from tf_mixprec.diagnostics.profile.records import BatchTime
from tf_mixprec.diagnostics.profile.records import Measured
from tf_mixprec.diagnostics.profile.records import Variant
from tf_mixprec.diagnostics.profile.steps import AS_IT_IS
from tf_mixprec.diagnostics.profile.steps import ProfiledSteps
from tf_mixprec.diagnostics.profile.steps import label_of
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import model_behind
from tf_mixprec.policies import hardware
from tf_mixprec.policies.recommendation import recommended_policy
from tf_mixprec.reports import Document
from tf_mixprec.reports import Report
from tf_mixprec.training import TrainStep
from tf_mixprec.training import model_autocast
from tf_mixprec.training.sixteen_bits import SixteenBitLayers

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile(Report):
    """What `mp.profile` measured.

    Args:
        verdict: The result in a sentence or two.
        findings: The three most useful changes, each with its `value`: the
            part of the time that is left. Then what else is good to know.
        model: The name of the model.
        device: The device.
        batch_size: The examples in a step.
        variants: The times of each precision; ratios are by the first.
        current: The place of the one the model is in now, or `None`.
        batches: By size of the batch, of the fastest variant.
        batches_of: The label of that variant; empty without batches.
        ceiling: By dtype, multiply-adds a second of large matrix products.

    Example:

    ```python
    profile = mp.profile(model, x, y)
    print(profile.variants[1].ratio)  # the time by that of float32
    profile.save("profile.html")
    ```
    """

    model: str
    device: str
    batch_size: int
    variants: tuple[Variant, ...]
    current: int | None = None
    batches: tuple[BatchTime, ...] = ()
    batches_of: str = ""
    ceiling: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: str, device: str, measured: Measured) -> "Profile":
        """Returns what is to be said of times.

        Args:
            model: The name of the model.
            device: The device.
            measured: The times.
        """
        return cls(
            verdict=findings.verdict(measured),
            findings=findings.findings(measured),
            model=model,
            device=device,
            batch_size=measured.batch_size,
            variants=measured.variants,
            current=measured.current,
            batches=measured.batches,
            batches_of=measured.batches_of,
            ceiling=measured.ceiling,
        )

    def document(self) -> Document:
        """Returns what there is to show."""
        measured = Measured(
            variants=self.variants,
            current=self.current,
            batch_size=self.batch_size,
            batches=self.batches,
            batches_of=self.batches_of,
            ceiling=self.ceiling,
        )
        return Document(
            title=f"Profile of {self.model}",
            verdict=self.verdict,
            findings=self.findings,
            facts={
                "device": self.device,
                "batch": self.batch_size,
                "now": findings.current_variant(measured).label
                if self.current is not None
                else "none of these",
            },
            blocks=blocks.blocks(measured),
        )


def profile(
    model: keras.Model | TrainStep,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    policies: Sequence[Any] | None = None,
    batch_size: int = 32,
    batch_sizes: Sequence[int] = (),
    jit_compile: bool | None = None,
    rounds: int = 15,
    seconds: float = 20.0,
) -> Profile:
    """Measures a training step in several precisions, and says what slows it.

    ```text
    precision    the time of a step by that of float32, in the same round
    parts        forward pass, backward pass, optimizer
    operations   how many in each dtype, and their time where it is known
    casts        how many, how many bytes, and their share of the time
    ceiling      how fast the step would be, were it all large products
    batch        examples a second by size
    ```

    Each variant is a copy, `mp.convert(model, policy)`, in an `mp.TrainStep`
    with a learning rate of 0; a schedule goes on, on the copy. All are called
    once a round, in random order, so that whatever else the machine does slows
    all. The model, its optimizer and how it is compiled stay as they are.
    Metrics are left out, and a `train_step` of the model's own is not used. Of
    a `mp.TrainStep` its model is profiled, with its optimizer and its loss: not
    its micro-batches, its clipping, `remat`, or a `compute_loss` of its own.

    Args:
        model: A `keras.Model`, compiled or not, or the `mp.TrainStep` that
            trains it; on one replica.
        x: Arrays or tensors, or a `tf.data.Dataset` of batches, as for
            `model.fit`. One batch is used, of examples from all over.
        y: The targets. Defaults to `None`, for none or a data set.
        sample_weight: The weights of the examples. Defaults to `None`.
        loss: As in `model.compile`. Defaults to what it is compiled with.
        optimizer: An optimizer or its name; a copy is used. Defaults to what
            the model is compiled with, or `"adam"`.
        policies: Policies, `mp.PrecisionRules`, or `"as it is"`; the first is
            what others are compared with. Defaults to float32, and the
            precision that the model has, or the one that suits the device.
        batch_size: Int: the examples in a step. Defaults to 32; a data set has
            batches already.
        batch_sizes: Ints: other sizes to try, in the fastest variant. Examples
            are repeated where there are not as many. Defaults to none.
        jit_compile: Bool: whether XLA compiles the steps. Defaults to how the
            model is compiled; one more variant is then what it is in now, with
            XLA the other way.
        rounds: Int: how many rounds there are at the most. Defaults to 15.
        seconds: Float: when to stop after 3 rounds; making and tracing the
            copies comes before. Defaults to 20.

    Returns:
        A `Profile`. Printed, it is a text; `save("profile.html")` writes a
        page.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range, if there is no loss, if
            the model is on several replicas or under autocast, or if it has no
            copy in a precision.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((8, 4)), np.ones((8, 2))
    >>> found = mp.profile(
    ...     model, x, y, batch_size=8, jit_compile=False, rounds=3, seconds=1.0
    ... )
    >>> float32, other = found.variants
    >>> float32.graph.multiply_adds  # forward, and for the gradient
    {'float32': 128}
    """
    has_own_loss = isinstance(model, TrainStep) and model.has_own_loss
    model = model_behind(model)
    _check_model(model)
    if has_own_loss and loss is None:
        raise ValueError(
            "`loss` must be given for a step with a `compute_loss` of its own, "
            "because the copies are trained by steps without it. Received: "
            f"loss=None, and the step of {model.name!r}"
        )
    _check_count("rounds", rounds)
    for size in batch_sizes:
        _check_count("batch_sizes", size)
    _check_seconds(seconds)
    batch = Data(x, y, sample_weight, batch_size).spread()
    chosen, current = _chosen(model, policies)
    steps = _steps(
        model,
        chosen,
        current,
        batch,
        _loss(model, loss),
        _optimizer(model, optimizer),
        jit_compile,
    )
    measured = measuring.measured(
        steps, current, batch, batch_sizes, rounds, seconds
    )
    measured = dataclasses.replace(
        measured, batch_statistics=measuring.batch_statistics(model)
    )
    return Profile.of(model.name, _device(), measured)


def _chosen(
    model: Any, policies: Sequence[Any] | None
) -> tuple[list[Any], int | None]:
    """Returns policies, and the place of the one that the model has."""
    is_narrow = bool(SixteenBitLayers.of(model))
    if policies is None and is_narrow:
        return ["float32", AS_IT_IS], 1
    if policies is None:
        suits = recommended_policy().policy.name
        other = "mixed_bfloat16" if suits == "float32" else suits
        return ["float32", other], 0
    if isinstance(policies, str) or not policies:
        raise ValueError(
            "`policies` must be a list of at least one policy, because each is "
            f"measured. Received: policies={policies!r}"
        )
    labels = [label_of(each) for each in policies]
    own = [AS_IT_IS, *([] if is_narrow else ["float32"])]
    places = [labels.index(each) for each in own if each in labels]
    return list(policies), min(places, default=None)


def _steps(
    model: Any,
    policies: Sequence[Any],
    current: int | None,
    batch: Batch,
    loss: Any,
    optimizer: Any,
    jit_compile: bool | None,
) -> list[ProfiledSteps]:
    """Returns a variant for each policy, and one with XLA the other way."""
    given: bool | str = "auto" if jit_compile is None else bool(jit_compile)
    if jit_compile is None and model.compiled:
        given = bool(model.jit_compile)
    arguments = (batch, loss, optimizer)
    steps = [
        ProfiledSteps(model, policy, *arguments, given) for policy in policies
    ]
    if jit_compile is not None:
        return steps
    place = current or 0
    try:
        other = ProfiledSteps(
            model, policies[place], *arguments, not steps[place].jit_compile
        )
        other.step()
    except tf.errors.OpError:  # there are operations that XLA does not have
        return steps
    return [*steps, other]


def _loss(model: Any, loss: Any) -> Any:
    if loss is not None:
        return loss
    if not model.compiled:
        raise ValueError(
            "`model` must be compiled, or `loss` be given, because a step "
            "minimizes a loss. Received: loss=None, and "
            f"{model.name!r}, which is not compiled"
        )
    return model.loss


def _optimizer(model: Any, optimizer: Any) -> Any:
    if optimizer is not None:
        return optimizer
    if model.compiled and model.optimizer is not None:
        return model.optimizer
    return "adam"


def _device() -> str:
    (first, *_) = hardware.visible_devices(
        "CPU" if hardware.runs_on_cpu() else "GPU"
    )
    return f"{first.name}, {hardware.facts_of(first)['name']}"


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model` or a `mp.TrainStep`, because "
            f"copies of it are trained. Received: model={model!r}"
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "`model` must be on one replica, because one device is measured; "
            "make it outside of the scope of the strategy. Received: "
            f"{model.distribute_strategy!r}"
        )
    if model_autocast.is_under_autocast(model):
        raise ValueError(
            "`model` must be one that has its precision from dtype policies, "
            "because its copies have; compile it without `autocast`. Received: "
            f"{model.name!r}, compiled with autocast"
        )


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"`{name}` must be an int, because it counts. Received: "
            f"{name}={value!r}"
        )
    if value < 1:
        raise ValueError(
            f"`{name}` must be at least 1, because it counts. Received: "
            f"{name}={value!r}"
        )


def _check_seconds(seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            "`seconds` must be a float, because it is a time. Received: "
            f"seconds={seconds!r}"
        )
    if seconds < 0:
        raise ValueError(
            "`seconds` must not be below 0, because it is a time. Received: "
            f"seconds={seconds!r}"
        )
