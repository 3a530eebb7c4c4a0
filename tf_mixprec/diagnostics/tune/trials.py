"""The model with some layers in float32 and the others in 16 bits, tried."""

import dataclasses
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec.conversion.plan import decisions
from tf_mixprec.diagnostics.tune.casts import Dtypes
from tf_mixprec.diagnostics.tune.casts import LayerGraph
from tf_mixprec.diagnostics.tune.measure import Measure
from tf_mixprec.diagnostics.tune.search import Numbers
from tf_mixprec.diagnostics.tune.units import Unit
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.precision_rules import PrecisionRules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A set of exceptions, and what the model is worth with it.

    Args:
        exceptions: The paths of the layers in float32, in the model's order.
        value: The loss, or the metric.
        increase: How much worse it is than in float32, as a share of that;
            below 0 where it is better.
        casts: How many results of layers are cast before they are used.
        is_within_budget: Whether the increase is no more than allowed.
        seconds: How long the trial took.
    """

    exceptions: tuple[str, ...]
    value: float
    increase: float
    casts: int
    is_within_budget: bool
    seconds: float


class OutOfTrialsError(Exception):
    """No more trials are allowed, or there is no more time."""


class Trials:
    """All trials of a search; each set is tried once.

    Args:
        measure: What is measured.
        units: The layers that can be in float32.
        base: The rules without exceptions.
        graph: How the layers are connected.
        reference: The value in float32.
        budget: The largest increase that is allowed.
        max_trials: How many sets may be tried.
        deadline: When, by `time.monotonic`, no trial is begun any more.

    Attributes:
        done: The trials, in their order.
    """

    def __init__(
        self,
        measure: Measure,
        units: Sequence[Unit],
        base: PrecisionRules,
        graph: LayerGraph,
        *,
        reference: float,
        budget: float,
        max_trials: int,
        deadline: float,
    ):
        self._measure = measure
        self._units = units
        self._base = base
        self._graph = graph
        self._reference = reference
        self._budget = budget
        self._max_trials = max_trials
        self._deadline = deadline
        self._of_set: dict[Numbers, Trial] = {}

    @property
    def done(self) -> tuple[Trial, ...]:
        """The trials, in their order."""
        return tuple(self._of_set.values())

    @property
    def best(self) -> Numbers | None:
        """The set within budget with the fewest exceptions, then casts."""
        within = [s for s, t in self._of_set.items() if t.is_within_budget]
        return min(within, key=self._cost, default=None)

    def __getitem__(self, exceptions: Numbers) -> Trial:
        """The trial of a set that was tried."""
        return self._of_set[exceptions]

    def is_enough(self, exceptions: Numbers) -> bool:
        """Returns whether a set keeps the model within budget; tries it once.

        Args:
            exceptions: The numbers of the units in float32.

        Raises:
            OutOfTrialsError: If it may not be tried any more.
        """
        if exceptions not in self._of_set:
            if (
                len(self._of_set) >= self._max_trials
                or time.monotonic() > self._deadline
            ):
                raise OutOfTrialsError
            self._of_set[exceptions] = self._tried(exceptions)
        return self._of_set[exceptions].is_within_budget

    def rules(
        self, exceptions: Numbers, reasons: Mapping[int, str] | None = None
    ) -> PrecisionRules:
        """Returns the rules with exceptions.

        Args:
            exceptions: The numbers of the units in float32.
            reasons: Why, by number. Defaults to none.
        """
        reasons = reasons or {}
        rules = [
            rule
            for n in sorted(exceptions)
            for rule in self._units[n].rules(reasons.get(n, ""))
        ]
        return PrecisionRules([*rules, *self._base.rules], self._base.policy)

    def casts(self, exceptions: Numbers) -> int:
        """Returns how many results are cast, with exceptions.

        Args:
            exceptions: The numbers of the units in float32.
        """
        model, rules = self._measure.model, self.rules(exceptions)
        plan = decisions(model, rules, Policy(rules.policy), None)

        def dtypes_of(layer: Any) -> Dtypes | None:
            if not isinstance(layer, keras.Layer):
                return None
            decision = plan.get(id(layer))
            policy = decision.policy if decision else None
            policy = layer.dtype_policy if policy is None else policy
            compute = policy.compute_dtype
            return compute, getattr(policy, "output_dtype", compute)

        return self._graph.casts(dtypes_of)

    def _tried(self, exceptions: Numbers) -> Trial:
        start = time.monotonic()
        value = self._measure.value(self.rules(exceptions))
        increase = self._measure.increase(value, self._reference)
        return Trial(
            exceptions=tuple(self._units[n].path for n in sorted(exceptions)),
            value=value,
            increase=increase,
            casts=self.casts(exceptions),
            is_within_budget=increase <= self._budget,
            seconds=time.monotonic() - start,
        )

    def _cost(self, exceptions: Numbers) -> tuple[int, int]:
        return len(exceptions), self._of_set[exceptions].casts
