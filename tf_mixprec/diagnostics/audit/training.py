"""What an audit finds in how a model is trained: loss scale, masters, XLA."""

from collections.abc import Iterator
from typing import Any

import keras

from tf_mixprec.diagnostics.audit.facts import ModelFacts
from tf_mixprec.diagnostics.audit.layers import counted
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.numerics.casting import in_16_bits
from tf_mixprec.numerics.epsilon import is_zero_in
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import MasterWeightOptimizer
from tf_mixprec.reports import ERROR
from tf_mixprec.reports import INFO
from tf_mixprec.reports import WARNING
from tf_mixprec.reports import Finding
from tf_mixprec.training.instance_methods import original_method

_REMEDY = "Compile with `mp.compile(model, ...)`"


def findings(facts: ModelFacts) -> Iterator[Finding]:
    """Yields what is wrong with the training of a model."""
    yield from _two_formats(facts)
    if not facts.optimizers and in_16_bits(facts.model.trainable_variables):
        yield _no_masters(facts, INFO)
    of_optimizers = {
        finding.code: finding
        for optimizer in facts.optimizers
        for finding in _of_optimizer(facts, optimizer)
    }
    yield from of_optimizers.values()
    if facts.model.compiled:
        yield from _losses(facts)
        yield from _execution(facts)


def _of_optimizer(facts: ModelFacts, optimizer: Any) -> Iterator[Finding]:
    if facts.narrow.float16:
        yield from _loss_scale(facts, optimizer)
    elif facts.narrow.bfloat16:
        yield from _needless_scale(optimizer)
    if in_16_bits(facts.model.trainable_variables) and not _has_masters(
        optimizer
    ):
        yield _no_masters(facts, WARNING)
        yield from _epsilon(facts, optimizer)


def _loss_scale(facts: ModelFacts, optimizer: Any) -> Iterator[Finding]:
    count = _count(facts.narrow.float16)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales and optimizer.loss_scale_factor is None:
        yield Finding(
            level=ERROR,
            code="no-loss-scale",
            layer="",
            what=(
                f"The loss is not scaled, with {counted(count, 'layer')} in "
                "float16."
            ),
            why=(
                "Gradients below 6e-08 are 0 in float16, and steps with inf "
                "or nan are not skipped."
            ),
            remedy=f"{_REMEDY}, or wrap the optimizer: `mp.wrap(optimizer)`.",
            value=count,
        )
    elif scales and not isinstance(optimizer, LossScaleOptimizer):
        yield Finding(
            level=WARNING,
            code="loss-scale-of-keras",
            layer="",
            what="The loss is scaled by Keras's own `LossScaleOptimizer`.",
            why=(
                "Its scale has no floor and no ceiling: it can become 0 or "
                "inf, and training then stands still without a word."
            ),
            remedy=f"{_REMEDY}, which converts it, or `mp.wrap(optimizer)`.",
        )


def _needless_scale(optimizer: Any) -> Iterator[Finding]:
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scales and getattr(optimizer, "dynamic", True):
        yield Finding(
            level=INFO,
            code="needless-loss-scale",
            layer="",
            what="The loss is scaled, and no layer is in float16.",
            why="bfloat16 has the range of float32: no gradient vanishes.",
            remedy=f"{_REMEDY}, which skips steps without scaling.",
        )


def _two_formats(facts: ModelFacts) -> Iterator[Finding]:
    narrow = facts.narrow
    if narrow.float16 and narrow.bfloat16:
        counts = (_count(narrow.float16), _count(narrow.bfloat16))
        yield Finding(
            level=WARNING,
            code="two-16-bit-formats",
            layer="",
            what=(
                f"There are {counted(counts[0], 'layer')} in float16 and "
                f"{counted(counts[1], 'layer')} in bfloat16."
            ),
            why=(
                "Between them values lose the digits of the one and the range "
                "of the other, and the loss must be scaled for the first."
            ),
            remedy="Take one: `mp.convert(model, policy)`.",
            value=min(counts),
        )


def _count(layers: tuple[Any, ...]) -> int:
    """Returns how many there are without models, which only pass on."""
    return sum(not isinstance(layer, keras.Model) for layer in layers)


def _no_masters(facts: ModelFacts, level: str) -> Finding:
    narrow = in_16_bits(facts.model.trainable_variables)
    dtype = dtype_name(narrow[0])
    smallest = {"float16": "1 / 2048", "bfloat16": "1 / 256"}[dtype]
    return Finding(
        level=level,
        code="no-masters",
        layer="",
        what=(
            f"The model trains {counted(len(narrow), 'variable')} in {dtype} "
            "without masters."
        ),
        why=(
            f"An update below {smallest} of its variable is rounded away, and "
            "late in training most are."
        ),
        remedy=(
            f"{_REMEDY}, which keeps float32 masters, or wrap the optimizer: "
            "`mp.wrap(optimizer)`."
        ),
        value=len(narrow),
    )


def _has_masters(optimizer: Any) -> bool:
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer.updates_in_float32
    return isinstance(optimizer, MasterWeightOptimizer)


def _epsilon(facts: ModelFacts, optimizer: Any) -> Iterator[Finding]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    epsilon = getattr(inner, "epsilon", None)
    if not isinstance(epsilon, (int, float)) or not epsilon:
        return
    narrow = in_16_bits(facts.model.trainable_variables)
    for dtype in sorted({dtype_name(each) for each in narrow}):
        if is_zero_in(dtype, epsilon):
            yield Finding(
                level=ERROR,
                code="optimizer-epsilon-vanishes",
                layer="",
                what=f"The optimizer's `epsilon` {epsilon:g} is 0 in {dtype}.",
                why="Where a gradient is 0, the update divides 0 by 0: nan.",
                remedy=f"{_REMEDY}, which updates in float32.",
                value=epsilon,
            )


def _losses(facts: ModelFacts) -> Iterator[Finding]:
    """Yields losses that are computed in 16 bits."""
    for dtype in sorted(_loss_dtypes(facts)):
        yield Finding(
            level=ERROR if dtype == "float16" else WARNING,
            code="loss-in-16-bits",
            layer="",
            what=f"The loss is computed in {dtype}.",
            why=(
                "Its sum over a batch overflows, and so does what it is "
                "multiplied by to scale it."
                if dtype == "float16"
                else "It has 2 digits, and so have its gradients."
            ),
            remedy=f"{_REMEDY}, and give losses no 16-bit `dtype`.",
        )


def _loss_dtypes(facts: ModelFacts) -> set[str]:
    """Returns 16-bit dtypes that losses are computed in.

    Those of Keras cast what they get to their own dtype, float32 unless it is
    said otherwise; code of users does not.
    """
    model = facts.model
    losses = keras.tree.flatten(getattr(model, "loss", None))
    dtypes = {getattr(loss, "dtype", None) for loss in losses}
    dtypes.add(keras.config.floatx())
    has_own_loss = type(model).compute_loss is not keras.Model.compute_loss
    is_widened = original_method(model, "compute_loss") != model.compute_loss
    if has_own_loss and not is_widened and facts.trace is not None:
        dtypes.update(facts.trace.output_dtypes)
    return {each for each in dtypes if each and has_16_bits(each)}


def _execution(facts: ModelFacts) -> Iterator[Finding]:
    model = facts.model
    if model.run_eagerly:
        yield Finding(
            level=WARNING,
            code="runs-eagerly",
            layer="",
            what="The model is compiled with `run_eagerly=True`.",
            why="Each operation is started by Python, and no two are fused.",
            remedy="Leave it out once the code is debugged.",
        )
    elif facts.narrow.bfloat16 and model.jit_compile and not facts.on_gpu:
        yield Finding(
            level=WARNING,
            code="xla-on-a-cpu",
            layer="",
            what="XLA compiles the step of a bfloat16 model for a CPU.",
            why="XLA gains nothing from bfloat16 there; oneDNN does.",
            remedy="Compile with `jit_compile=False`.",
        )
