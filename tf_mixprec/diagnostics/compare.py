"""`compare`: how far each layer is from float32, forward and backward."""

import math
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.diagnostics.comparison import LEAST_COSINE
from tf_mixprec.diagnostics.comparison import ComparedPolicy
from tf_mixprec.diagnostics.comparison import Comparison
from tf_mixprec.diagnostics.comparison_step import GRADIENT
from tf_mixprec.diagnostics.comparison_step import OUTPUT
from tf_mixprec.diagnostics.comparison_step import WEIGHT_GRADIENT
from tf_mixprec.diagnostics.comparison_step import ComparedTensor
from tf_mixprec.diagnostics.comparison_step import ComparisonStep
from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.explanations import keep_float32
from tf_mixprec.diagnostics.in_precision import as_rules
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.policies import PrecisionRules
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding
from tf_mixprec.reports import ranked

MOST_ERROR = 0.1  # of an output, relative; rounding alone makes 0.001 to 0.01
MOST_LOSS_CHANGE = 0.01  # relative, against float32
_SCALE = 2.0**15  # where no optimizer has one
_OWN = "as it is"


def compare(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    policies: Sequence[Any] | None = None,
    sample_weight: Any = None,
    loss: Any = None,
    loss_scale: float | None = None,
    batch_size: int = 32,
    jit_compile: bool | None = None,
) -> Comparison:
    """Compares a model in other precisions with itself in float32.

    One training step without dropout is made in each, with the same weights and
    the same batch, and the outputs of all layers, their gradients and those of
    the weights are compared element by element: relative error, ulps of the
    dtype, cosine. The model stays as it is.

    Args:
        model: A compiled `keras.Model`, or a `mp.TrainStep`.
        x: Arrays or tensors whose first axis is the examples, nested as the
            model takes them, or a `tf.data.Dataset` of batches. One batch of
            examples from all over it is used; of a data set its first batch.
        y: The targets. Defaults to none.
        policies: What to compare with float32: policies or `mp.PrecisionRules`,
            as for `mp.convert`, or `None` for what the layers have. Defaults to
            that alone.
        sample_weight: The weights of the examples. Defaults to none.
        loss: As in `model.compile`. Defaults to what the model is compiled
            with.
        loss_scale: What the loss is multiplied with. Defaults to the present
            scale of the optimizer, and to `2.0**15` without one. Where that
            scale is at its minimum, as in a run that is stuck, to the one it
            began with: the gradients of all layers would be lost.
        batch_size: Int: how many examples the step has. Defaults to 32.
        jit_compile: Whether XLA compiles the steps. Defaults to what the model
            is compiled with.

    Returns:
        A `Comparison`: `print(report)`, `report.save("report.html")`,
        `report.policies[0].tensors`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no loss, or an argument is out of its range.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((8,)),
    ...         keras.layers.Dense(8, "relu"),
    ...         keras.layers.Dense(1),
    ...     ]
    ... )
    >>> x = np.random.default_rng(0).normal(size=(64, 8))
    >>> y = x.sum(axis=1, keepdims=True)
    >>> report = mp.compare(
    ...     model, x, y, loss="mse", policies=["mixed_float16"]
    ... )
    >>> report.policies[0].least_cosine.difference.cosine > 0.999
    True
    """
    subject = Subject(model, loss)
    batch = Data(x, y, sample_weight, batch_size).spread()
    chosen = _checked_policies(policies)
    for policy in chosen:
        if policy is not None:
            as_rules(policy)
    stuck_scale = None
    if loss_scale is None and subject.optimizer is None:
        loss_scale = _SCALE
    elif loss_scale is None and subject.initial_scale is not None:
        loss_scale, stuck_scale = subject.initial_scale, subject.loss_scale
    scale = subject.checked_scale(loss_scale)
    if jit_compile is None:
        jit_compile = subject.jit_compile
    compared = []
    for policy in chosen:
        step = ComparisonStep(subject, policy, jit_compile=jit_compile)
        own, wide, tensors = step(batch, scale)
        compared.append(compared_policy(policy, own, wide, tensors))
    findings = ranked(
        [*_of_float32(wide), *(f for each in compared for f in judged(each))]
    )
    return Comparison(
        verdict=_verdict(compared, findings),
        findings=findings,
        model=subject.model.name,
        float32_loss=wide,
        loss_scale=scale,
        stuck_scale=stuck_scale,
        policies=tuple(compared),
    )


def _checked_policies(policies: Any) -> list[Any]:
    if policies is None:
        return [None]
    if isinstance(policies, (str, keras.DTypePolicy, PrecisionRules)):
        return [policies]
    if not list(policies):
        raise ValueError(
            "`policies` must have an entry, because each is compared with "
            "float32; leave it out for what the layers have. Received: "
            f"policies={policies!r}"
        )
    return list(policies)


def compared_policy(
    policy: Any, loss: float, wide: float, tensors: tuple[ComparedTensor, ...]
) -> ComparedPolicy:
    """Returns the record of one comparison.

    Args:
        policy: The policy or rules; `None` for what the layers have.
        loss: The loss.
        wide: The loss in float32.
        tensors: The tensors.
    """
    name = _OWN if policy is None else str(as_rules(policy).policy)
    if isinstance(policy, PrecisionRules):
        name += ", by rules"
    change = (loss - wide) / abs(wide) if wide else math.nan
    return ComparedPolicy(
        policy=name, loss=loss, loss_change=change, tensors=tensors
    )


def _of_float32(loss: float) -> Iterator[Finding]:
    if not math.isfinite(loss):
        yield Finding(
            level=ERROR,
            code="nonfinite-float32",
            layer="",
            what=f"The loss is {loss} in float32 already.",
            why="It is not a matter of 16 bits, and there is nothing to "
            "compare with.",
            remedy="mp.find_nonfinite(model, x, y) says whether it is in the "
            "data, in a weight, or made by a layer or the loss.",
            value=loss,
        )


def judged(policy: ComparedPolicy) -> Iterator[Finding]:
    """Yields what is too far from float32.

    Args:
        policy: The comparison.
    """
    in_order = [
        *policy.of_role(OUTPUT),
        *reversed(policy.of_role(GRADIENT)),
        *policy.of_role(WEIGHT_GRADIENT),
    ]
    bad = [each for each in in_order if each.difference.nonfinite]
    if bad:
        yield _nonfinite(policy, bad[0])
    if abs(policy.loss_change) > MOST_LOSS_CHANGE:
        yield Finding(
            level=WARNING,
            code="loss-changes",
            layer="",
            what=f"{policy.policy}: the loss changes by "
            f"{policy.loss_change:+.2%}.",
            why="Forward errors reach the loss; the table of outputs says "
            "where they grow.",
            remedy="mp.tune finds the layers to keep in float32.",
            value=policy.loss_change,
        )
    for each in policy.of_role(WEIGHT_GRADIENT):
        least = LEAST_COSINE.get(each.dtype, LEAST_COSINE["float16"])
        if policy.is_negligible(each) or each.difference.nonfinite:
            continue
        if each.difference.cosine < least:
            yield _turned(policy, each)
    jump = _largest_jump(policy.of_role(OUTPUT))
    if jump is not None:
        tensor, factor = jump
        is_far = tensor.difference.relative_error > MOST_ERROR
        yield Finding(
            level=WARNING if is_far else INFO,
            code="error-grows",
            layer=tensor.layer,
            what=f"{policy.policy}: the error of the outputs grows most in "
            f"{tensor.name} ({tensor.layer_class}), {factor:.2g} times, to "
            f"{tensor.difference.relative_error:.2g}.",
            why="It is the layer that rounding in what it is given, and in "
            "itself, costs most.",
            remedy="If the loss or the gradients are too far off, begin "
            f"with it: {keep_float32(tensor.layer)}.",
            value=factor,
        )


def _nonfinite(policy: ComparedPolicy, tensor: ComparedTensor) -> Finding:
    return Finding(
        level=ERROR,
        code="nonfinite",
        layer=tensor.layer,
        what=f"{policy.policy}: the {tensor.role} of {tensor.name} has "
        f"{tensor.difference.nonfinite} inf or nan among "
        f"{tensor.difference.size} values, which are finite in float32.",
        why="Values beyond the largest number of the dtype become inf.",
        remedy="mp.find_nonfinite names the first tensor that does.",
        value=float(tensor.difference.nonfinite),
    )


def _turned(policy: ComparedPolicy, tensor: ComparedTensor) -> Finding:
    difference = tensor.difference
    return Finding(
        level=WARNING,
        code="gradient-turns",
        layer=tensor.layer,
        what=f"{policy.policy}: the gradient of {tensor.name} has a cosine of "
        f"{difference.cosine:.4f} with that in float32, and "
        f"{difference.norm_ratio:.3g} of its norm.",
        why="Rounding, or gradients that become zero, turn it; steps go "
        "elsewhere.",
        remedy="mp.diagnose says whether a higher loss scale would save it; "
        f"else {keep_float32(tensor.layer)}.",
        value=difference.cosine,
    )


def _largest_jump(
    outputs: list[ComparedTensor],
) -> tuple[ComparedTensor, float] | None:
    """Returns where the relative error grows most over what was before."""
    worst, found = 4.0, None  # two bits; less is no jump
    before = None
    for each in outputs:
        error = each.difference.relative_error
        if not math.isfinite(error):
            continue
        if before and error / before > worst:
            worst, found = error / before, each
        if error > 0:
            before = error
    return None if found is None else (found, worst)


def _verdict(
    policies: Sequence[ComparedPolicy], findings: Sequence[Finding]
) -> str:
    serious = [each for each in findings if each.level != INFO]
    if serious:
        more = f" {len(serious) - 1} more below." if serious[1:] else ""
        return f"{serious[0].what}{more}"
    texts = []
    for each in policies:
        least = each.least_cosine
        cosine = (
            ""
            if least is None
            else (
                f", and the gradients have a cosine of at least "
                f"{least.difference.cosine:.5f}"
            )
        )
        texts.append(
            f"{each.policy}: the loss is within {abs(each.loss_change):.2g} "
            f"of float32{cosine}."
        )
    return " ".join(texts)
