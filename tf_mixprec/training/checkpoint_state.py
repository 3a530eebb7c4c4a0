"""What a run is made of: every variable that its next steps depend on."""

import re
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.optimizers import MasterWeightOptimizer
from tf_mixprec.optimizers import keras_internals as optimizer_internals
from tf_mixprec.optimizers.masters import Master
from tf_mixprec.optimizers.shared_loss_scale import SharingOptimizer

# The groups that variables are saved in.
WEIGHTS = "weights"  # of the model, with the seeds of its random layers
SEEDS = "seeds"  # that a subclass of the step has
SLOTS = "slots"  # of the optimizer that makes the update, with `iterations`
SATURATED = "saturated"  # the counter of the masters
MASTERS = "masters"
SCALE = "scale"  # and "scale/NAME" for the scale of one of several losses
METRICS = "metrics"
TOTALS = "totals"  # the means of an epoch

# What a step makes with its first batch.
OF_FIRST_STEP = (METRICS, TOTALS)


class Entry(NamedTuple):
    """A variable of a run.

    Args:
        path: What it is known by, the same in every process.
        variable: The Keras variable.
        copies: Its components, one for each replica.
        are_alike: Whether these hold the same, so that one stands for all.
    """

    path: str
    variable: Variable
    copies: list[Any]
    are_alike: bool

    @property
    def parts(self) -> list[Any]:
        """The components that are saved."""
        return self.copies[:1] if self.are_alike else self.copies

    @property
    def is_sum(self) -> bool:
        """Whether its value is the sum of its components."""
        held = self.variable
        return (held.synchronization, held.aggregation) == ("on_read", "sum")

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it, in JSON types."""
        return {
            "path": self.path,
            "shape": list(self.variable.shape),
            "dtype": keras.backend.standardize_dtype(self.variable.dtype),
            "parts": len(self.parts),
        }


class Scale(NamedTuple):
    """A loss scale of a run.

    Args:
        state: The variables of its state.
        rule: How it moves.
        others: Other variables of it.
    """

    state: LossScaleState
    rule: LossScaleRule
    others: Sequence[Variable] = ()


def groups_of(step: Any) -> dict[str, list[Entry]]:
    """Returns the variables of a run by group.

    Args:
        step: A `mp.TrainStep` whose model and optimizer are built. Without the
            groups of `OF_FIRST_STEP` if it has made no step.
    """
    model, inner = step.model, step.optimizer.inner_optimizer
    entries = _Entries(model.distribute_strategy)
    slots = optimizer_internals.updating(inner).variables
    seeds = {
        name: value.state
        for name, value in sorted(vars(step).items())
        if isinstance(value, keras.random.SeedGenerator)
    }
    groups = {
        WEIGHTS: entries.of(model.variables, _short_paths(model.variables)),
        SEEDS: entries.of(seeds.values(), seeds),
        SLOTS: entries.alike(slots, _slot_paths(slots, model.variables)),
        SATURATED: entries.alike(_saturated(inner), ["saturated_weights"]),
    }
    for name, scale in scales_of(step).items():
        variables = [*scale.state, *scale.others]
        names = [*scale.state._fields, *(v.name for v in scale.others)]
        groups[name] = entries.alike(variables, names)
    return groups | groups_of_first_step(step)


def groups_of_first_step(step: Any) -> dict[str, list[Entry]]:
    """Returns the groups of `OF_FIRST_STEP`, none before that step."""
    if step._totals is None:
        return {}
    entries = _Entries(step.model.distribute_strategy)
    return {
        name: entries.of(variables, _short_paths(variables))
        for name, variables in (
            (METRICS, step.model.metrics_variables),
            (TOTALS, step._totals.variables),
        )
    }


def scales_of(step: Any) -> dict[str, Scale]:
    """Returns the loss scales of a run by group."""
    optimizer = step.optimizer
    state = LossScaleState(
        *(getattr(optimizer, name) for name in LossScaleState._fields)
    )
    shared = {f"{SCALE}/{k}": v for k, v in step.loss_scales.items()}
    if isinstance(optimizer, SharingOptimizer):
        shared[f"{SCALE} of several optimizers"] = optimizer._shared
    return {
        SCALE: Scale(state, optimizer.rule),
        **{
            name: Scale(each.state, each.rule, each.round_variables)
            for name, each in shared.items()
        },
    }


def masters_of(step: Any) -> dict[int, Master]:
    """Returns what is kept of 16-bit weights, by index in `WEIGHTS`."""
    inner = step.optimizer.inner_optimizer
    if not isinstance(inner, MasterWeightOptimizer):
        return {}
    by_weight = {id(m.weight): m for m in inner._masters.values()}
    return {
        index: by_weight[id(variable)]
        for index, variable in enumerate(step.model.variables)
        if id(variable) in by_weight
    }


def rounding_of(step: Any) -> str | None:
    """Returns how masters are rounded, `None` if there are none."""
    inner = step.optimizer.inner_optimizer
    return inner.rounding if isinstance(inner, MasterWeightOptimizer) else None


class _Entries:
    """Makes entries of variables.

    Args:
        strategy: The strategy of the model.
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy

    def of(
        self, variables: Iterable[Variable], paths: Iterable[str]
    ) -> list[Entry]:
        """Returns entries of variables, each replica its own unless trained.

        The statistics of batch normalization, seeds and sums of metrics are
        each replica's own.
        """
        return [
            self._entry(path, variable, bool(variable.trainable))
            for variable, path in zip(variables, paths, strict=True)
        ]

    def alike(
        self, variables: Sequence[Variable], paths: Sequence[str]
    ) -> list[Entry]:
        """Returns entries of variables that are the same on all replicas."""
        return [
            self._entry(path, variable, True)
            for variable, path in zip(variables, paths, strict=False)
        ]

    def _entry(self, path: str, variable: Variable, are_alike: bool) -> Entry:
        held = optimizer_internals.held_variable(variable)
        copies = self._strategy.experimental_local_results(held)
        return Entry(path, variable, list(copies), are_alike)


def _saturated(inner: Any) -> list[Variable]:
    """Returns the counter of a `MasterWeightOptimizer`, of others nothing."""
    if isinstance(inner, MasterWeightOptimizer):
        return [inner.saturated_weights]
    return []


def _short_paths(variables: Iterable[Variable]) -> list[str]:
    return [_short(variable.path) for variable in variables]


def _short(path: str) -> str:
    """Returns a path that Keras gives in every process, and every version.

    Names that Keras makes are numbered in the order of their making, and
    models are in the paths of some versions only.
    """
    return "/".join(_unnumbered(name) for name in path.split("/")[-2:])


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def _slot_paths(
    slots: Sequence[Variable], weights: Sequence[Variable]
) -> list[str]:
    """Returns what slots are known by: their weight, and what they are of it.

    Keras names them after the path of their weight.
    """
    short = {w.path.replace("/", "_"): _short(w.path) for w in weights}
    paths = []
    for slot in slots:
        words = slot.name.split("_")
        starts = ("_".join(words[:i]) for i in range(len(words) - 1, 0, -1))
        start = next((start for start in starts if start in short), None)
        if start is None:
            paths.append(slot.name)
        else:
            paths.append(f"{slot.name[len(start) + 1 :]} of {short[start]}")
    return paths
