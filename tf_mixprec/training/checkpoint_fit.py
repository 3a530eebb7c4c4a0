"""From the values of a checkpoint to those of a run that may differ in knobs.

Everything is computed before anything is written.
"""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.numerics import rounding
from tf_mixprec.numerics.casting import widened
from tf_mixprec.optimizers import keras_internals as optimizer_internals
from tf_mixprec.optimizers.masters import Master
from tf_mixprec.training import checkpoint_model
from tf_mixprec.training import checkpoint_state as state
from tf_mixprec.training.checkpoint_file import CheckpointFile
from tf_mixprec.training.checkpoint_file import Saved
from tf_mixprec.training.checkpoint_state import Entry

Write = Callable[[], Any]

# What may be on one side only.
_OPTIONAL = (state.SATURATED, state.MASTERS, *state.OF_FIRST_STEP)
# Of a scale: what counts on when a fixed one becomes a dynamic one.
_COUNTERS = ("skipped_steps", "consecutive_skipped_steps", "found_inf")


def about(step: Any) -> dict[str, Any]:
    """Returns what a checkpoint says of a run beside its variables."""
    return {
        "optimizer": optimizer_name(step),
        "rounding": state.rounding_of(step),
        "build_config": checkpoint_model.build_config(step.model),
        "fixed_scales": {
            name: scale.rule.initial_scale
            for name, scale in state.scales_of(step).items()
            if isinstance(scale.rule, StaticLossScale)
        },
    }


def optimizer_name(step: Any) -> str:
    """Returns the name of the class that makes the update."""
    return type(optimizer_internals.updating(step.optimizer)).__name__


def check_optimizer(file: CheckpointFile, step: Any) -> None:
    """Raises if another optimizer than that of a run made the update."""
    name = optimizer_name(step)
    if file.about["optimizer"] != name:
        _raise_misfit(file, f"the optimizer {file.about['optimizer']}", name)


def check_fits(
    file: CheckpointFile, own: Mapping[str, Sequence[Entry]]
) -> None:
    """Raises unless a checkpoint is of the model and the optimizer of a run.

    Args:
        file: The checkpoint.
        own: The variables of the run.
    """
    for name in dict.fromkeys([*own, *file.groups]):
        if name in _OPTIONAL:
            continue
        theirs = [_kind(entry) for entry in file.groups.get(name, ())]
        ours = [_kind(entry) for entry in own.get(name, ())]
        for index in range(max(len(theirs), len(ours))):
            if theirs[index : index + 1] != ours[index : index + 1]:
                _raise_misfit(
                    file,
                    f"{name} {index} of {len(theirs)}: "
                    f"{_named(theirs[index : index + 1])}",
                    f"{_named(ours[index : index + 1])} of {len(ours)}",
                )


def writes(
    file: CheckpointFile, step: Any, own: Mapping[str, Sequence[Entry]]
) -> list[Write]:
    """Returns what gives a run the values of a checkpoint that fits.

    Args:
        file: The checkpoint.
        step: The `mp.TrainStep`.
        own: Its variables.
    """
    found = _writes_of_weights(file, step, own[state.WEIGHTS])
    for name in (state.SEEDS, state.SLOTS):
        found += group_writes(file.groups[name], own[name])
    if file.groups[state.SATURATED] and own[state.SATURATED]:
        name = state.SATURATED
        found += group_writes(file.groups[name], own[name])
    for name, scale in state.scales_of(step).items():
        fixed = file.about["fixed_scales"].get(name)
        saved = _scale_in_bounds(file.groups[name], scale.rule, fixed)
        found += group_writes(saved, own[name])
    return found


def are_alike(saved: Sequence[Saved], own: Sequence[Entry]) -> bool:
    """Returns whether a checkpoint has the variables of a group of a run."""
    return [_kind(s) for s in saved] == [_kind(e) for e in own]


def group_writes(saved: Sequence[Saved], own: Sequence[Entry]) -> list[Write]:
    """Returns what gives variables the values of others of the same kind."""
    return [
        write
        for theirs, ours in zip(saved, own, strict=True)
        for write in _writes_of_parts(theirs.parts, ours)
    ]


def _writes_of_weights(
    file: CheckpointFile, step: Any, own: Sequence[Entry]
) -> list[Write]:
    masters = state.masters_of(step)
    saved = file.groups[state.WEIGHTS]
    # By index, which is their path.
    kept = {int(s.path): s.parts[0] for s in file.groups[state.MASTERS]}
    found = []
    for index, (theirs, ours) in enumerate(zip(saved, own, strict=True)):
        changes = theirs.dtype != _dtype(ours)
        # What float32 has of it: the master if there is one.
        exact = kept.get(index, theirs.parts[0])
        if index in masters:
            roundings = (None, state.rounding_of(step))
            changes |= file.about["rounding"] not in roundings
            found += _writes_of_master(
                masters[index], theirs, ours, widened(exact), changes
            )
        else:
            parts = [exact] if changes and index in kept else theirs.parts
            found += _writes_of_parts(parts, ours)
    return found


def _writes_of_master(
    master: Master, saved: Saved, own: Entry, exact: Tensor, changes: bool
) -> list[Write]:
    """Returns what gives a weight and its master their values.

    Args:
        master: The master.
        saved: The weight in the checkpoint.
        own: The weight.
        exact: The value in float32.
        changes: Whether the weight was another rounding of that.
    """
    if changes:
        return [lambda: master.write(exact)]
    writes = _writes_of_parts(saved.parts, own)
    return [*writes, lambda: master.load(exact)]


def _scale_in_bounds(
    saved: Sequence[Saved], rule: LossScaleRule, was_fixed: float | None
) -> list[Saved]:
    """Returns the state of a loss scale as the rule of a run has it.

    Args:
        saved: The state in the checkpoint.
        rule: The rule.
        was_fixed: The number that it was fixed to, `None` if it moved.
    """
    start = rule.initial_state()._asdict()
    values = {s.path: s.parts[0] for s in saved}
    is_fixed = isinstance(rule, StaticLossScale)
    if is_fixed != (was_fixed is not None):
        # A fixed scale is configuration, and nothing to go on from.
        anew = set(LossScaleState._fields) - set(_COUNTERS)
        values |= {name: start[name] for name in anew}
    elif not isinstance(rule, StaticLossScale):
        values["loss_scale"] = np.clip(
            values["loss_scale"], rule.min_scale, rule.max_scale
        )
        values["hysteresis_left"] = np.minimum(
            values["hysteresis_left"], rule.hysteresis
        )
    elif was_fixed != rule.initial_scale:
        values["loss_scale"] = start["loss_scale"]
    return [
        s._replace(parts=[ops.convert_to_tensor(values[s.path], s.dtype)])
        for s in saved
    ]


def _writes_of_parts(parts: Sequence[Tensor], own: Entry) -> list[Write]:
    """Returns what gives the components of a variable their values.

    Args:
        parts: One for each replica there was, or one for all.
        own: The variable.
    """
    dtype, copies = _dtype(own), own.copies
    values = [_in_dtype(part, dtype) for part in parts]
    if len(values) != len(copies):
        values = _spread(values, len(copies), is_sum=own.is_sum)
    return [
        functools.partial(copy.assign, value)
        for copy, value in zip(copies, values, strict=True)
    ]


def _spread(values: list[Tensor], count: int, *, is_sum: bool) -> list[Tensor]:
    """Returns values for another number of replicas."""
    if not is_sum:
        return [values[0]] * count
    total = functools.reduce(ops.add, values)
    return [total, *[ops.zeros_like(total)] * (count - 1)]


def _in_dtype(value: Tensor, dtype: str) -> Tensor:
    if keras.backend.standardize_dtype(value.dtype) == dtype:
        return value
    if dtype in ("bfloat16", "float16"):
        return rounding.rounded(ops.cast(value, "float32"), dtype)
    return ops.cast(value, dtype)


def _dtype(entry: Entry) -> str:
    return keras.backend.standardize_dtype(entry.variable.dtype)


def _kind(entry: Saved | Entry) -> tuple[str, tuple[int, ...], str]:
    """Returns what must be the same on both sides."""
    described = entry.description()
    dtype = described["dtype"]
    is_float = dtype in ("bfloat16", "float16", "float32", "float64")
    return (
        described["path"],
        tuple(described["shape"]),
        "float" if is_float else dtype,
    )


def _named(kinds: Sequence[tuple[str, tuple[int, ...], str]]) -> str:
    """Returns a kind, or the lack of one, in words."""
    if not kinds:
        return "nothing"
    ((path, shape, dtype),) = kinds
    return f"{path}, {dtype} of the shape {shape}"


def _raise_misfit(file: CheckpointFile, theirs: str, ours: str) -> None:
    raise ValueError(
        "A checkpoint must be of the model and the optimizer that it is "
        "restored to, because each value goes to its variable; make both as "
        "they were, or give the directory of this run. No variable was "
        f"changed. Received: {file.path!r} with {theirs}, and here {ours}"
    )
