"""`tune`: the fewest layers in float32 that keep the loss within a budget."""

import math
import numbers
import time
from collections.abc import Iterator
from typing import Any

from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.data import size_of
from tf_mixprec.diagnostics.in_precision import as_rules
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.diagnostics.tune import findings
from tf_mixprec.diagnostics.tune.choice import Choice
from tf_mixprec.diagnostics.tune.choice import chosen
from tf_mixprec.diagnostics.tune.data import split_batches
from tf_mixprec.diagnostics.tune.findings import percent
from tf_mixprec.diagnostics.tune.findings import than_in_float32
from tf_mixprec.diagnostics.tune.measure import Measure
from tf_mixprec.diagnostics.tune.ranges import range_verdict
from tf_mixprec.diagnostics.tune.report import FLOAT32
from tf_mixprec.diagnostics.tune.report import MERGED
from tf_mixprec.diagnostics.tune.report import TunedLayer
from tf_mixprec.diagnostics.tune.report import TuneReport
from tf_mixprec.diagnostics.tune.scores import ScoringPass
from tf_mixprec.diagnostics.tune.trials import Trials
from tf_mixprec.diagnostics.tune.units import units_of
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import Policy
from tf_mixprec.policies import PrecisionRules
from tf_mixprec.reports import ranked


def tune(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    loss: Any = None,
    policy: Any = "auto",
    budget: float = 0.01,
    metric: Any = None,
    mode: str = "auto",
    max_trials: int = 20,
    max_seconds: float | None = None,
    batch_size: int = 32,
    seed: int = 0,
    jit_compile: bool | None = None,
) -> TuneReport:
    """Finds the fewest layers that must stay in float32.

    The budget bounds how much worse the model may get: with the loss L in
    float32, on the same examples and as `model.evaluate` computes it,
    (L of the rules - L) / |L| <= `budget`. Nothing random is in it, since
    layers do not train. inf and nan are over any budget.

    ```text
    1  in float32, on one batch: what each layer returns, and its score, which
       is how much it changes the loss if it alone computes in 16 bits, to first
       order: the sum of the gradient of the loss times the change of what the
       layer returns; and whether that overflows
    2  on other batches: the loss with no exception. Within budget: done
    3  the loss with the highest scores in float32: as many as it takes,
       by bisection around the number that scores predict
    4  the loss without some of these, by halves: what is not needed goes
    5  cheap layers between two exceptions join them, if that saves casts
    ```

    Each trial is one trace of the forward pass. The model is as before
    afterwards. Only the forward pass is looked at: `mp.diagnose` says what 16
    bits do to gradients.

    Args:
        model: A compiled `keras.Model`, or a `mp.TrainStep`.
        x: Arrays or tensors whose first axis is the examples, nested as the
            model takes them, or a `tf.data.Dataset` of batches. One batch gives
            scores, and at most 32 others verify; a single one does both.
        y: The targets. Defaults to none.
        sample_weight: The weights of the examples. Defaults to none.
        loss: As in `model.compile`. Defaults to what the model is compiled
            with.
        policy: A policy or `mp.PrecisionRules`, as for `mp.convert`: exceptions
            are made from these. Defaults to `"auto"`: what
            `mp.recommended_policy` says of the device.
        budget: Float of at least 0: the increase that is allowed, as a share.
            Defaults to 0.01.
        metric: What the budget is for in the place of the loss: a
            `keras.metrics.Metric` or its name, computed from predictions and
            targets of a model with one output; or a function from the model
            to a float. Of a metric M of which more is better, M - (M of the
            rules) is its increase.
        mode: As in `keras.callbacks.EarlyStopping`: `"min"` or `"max"`, what is
            better; `"auto"`: what is known of a metric of Keras's, and of a
            function `"min"`. Defaults to `"auto"`.
        max_trials: Int: how many sets of exceptions are tried at most. When
            there are no more, the best so far is returned: the fewest
            exceptions within budget, or float32 throughout. Defaults to 20.
        max_seconds: Float: after so many no trial is begun. Defaults to no
            limit.
        batch_size: Int: how many examples a batch has. Defaults to 32.
        seed: Int: of the order in which examples are drawn from arrays, and of
            that of equal scores. Defaults to 0.
        jit_compile: Whether XLA compiles the passes. Defaults to what the model
            is compiled with.

    Returns:
        A `TuneReport`: `mp.convert(model, report.rules)`, `print(report)`,
        `report.exceptions`, `report.save("report.html")`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no loss, if an argument is out of its range, if
            the policy has no 16 bits, if a metric of Keras's is for several
            outputs, or if the loss is not finite in float32.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((8,)),
    ...         keras.layers.Dense(8, "relu", name="hidden"),
    ...         keras.layers.Dense(8, name="large", kernel_initializer="ones"),
    ...         keras.layers.Lambda(lambda x: x * 1e5, name="larger"),
    ...         keras.layers.Lambda(lambda x: x * 1e-5, name="small"),
    ...         keras.layers.Dense(1, name="head"),
    ...     ]
    ... )
    >>> x = np.random.default_rng(0).normal(size=(64, 8))
    >>> y = x.sum(axis=1, keepdims=True)
    >>> report = mp.tune(model, x, y, loss="mse", policy="mixed_float16")
    >>> report.exceptions
    ('larger', 'small')
    >>> mixed = mp.convert(model, report.rules)
    >>> [layer.compute_dtype for layer in mixed.layers]
    ['float16', 'float16', 'float32', 'float32', 'float32']
    """
    start = time.monotonic()
    _check_budget(budget)
    _check_limits(max_trials, max_seconds)
    _check_seed(seed)
    base = _base_rules(policy)
    subject = Subject(model, loss)
    if jit_compile is None:
        jit_compile = subject.jit_compile
    data = Data(x, y, sample_weight, batch_size)
    first, others = split_batches(data, seed)
    subject.build(first)
    measure = Measure(subject, metric, mode, others, jit_compile=jit_compile)
    search = _Search(subject, base, measure, first, jit_compile=jit_compile)
    choice = search.choice(
        budget=float(budget),
        max_trials=max_trials,
        deadline=start + (math.inf if max_seconds is None else max_seconds),
        seed=seed,
    )
    return search.report(
        choice,
        examples=sum(map(size_of, others)),
        held_out=others[0] is not first,
        start=start,
    )


class _Search:
    """Scores, trials, and what came of them."""

    def __init__(
        self,
        subject: Subject,
        base: PrecisionRules,
        measure: Measure,
        batch: Any,
        *,
        jit_compile: bool,
    ):
        self._base = base
        self._dtype = Policy(base.policy).compute_dtype
        self._measure = measure
        self._units = units_of(subject.model, base)
        scoring = ScoringPass(subject, self._units, jit_compile=jit_compile)
        self._scores = scoring(batch)
        self._scored_loss = scoring.loss
        self._graph = scoring.graph
        self._reference = measure.value(FLOAT32)
        _check_finite(measure.name, self._reference)

    def choice(
        self, *, budget: float, max_trials: int, deadline: float, seed: int
    ) -> Choice:
        """Returns the exceptions."""
        self._budget = budget
        self._trials = Trials(
            self._measure,
            self._units,
            self._base,
            self._graph,
            reference=self._reference,
            budget=budget,
            max_trials=max_trials,
            deadline=deadline,
        )
        allowed = budget * abs(self._scored_loss)
        return chosen(self._trials, self._units, self._scores, allowed, seed)

    def report(
        self, choice: Choice, *, examples: int, held_out: bool, start: float
    ) -> TuneReport:
        """Returns what was found, as a record."""
        layers = tuple(self._layers(choice))
        within = choice.needed is not None
        trials = self._trials
        tuned, rules = self._reference, PrecisionRules([], FLOAT32)
        if choice.needed is not None:
            exceptions = choice.needed | choice.merged
            tuned = trials[exceptions].value
            reasons = {n: each.reason for n, each in enumerate(layers)}
            rules = trials.rules(exceptions, reasons)
        done = trials.done
        return TuneReport(
            verdict=self._verdict(layers, tuned, within=within),
            findings=ranked(
                [
                    *findings.of_search(
                        is_within_budget=within,
                        is_complete=choice.is_complete,
                        builds=len(done),
                    ),
                    *findings.of_layers(layers if within else ()),
                ]
            ),
            rules=rules,
            is_within_budget=within,
            is_complete=choice.is_complete,
            model=self._measure.model.name,
            policy=self._base.policy,
            measured=self._measure.name,
            budget=self._budget,
            float32_value=self._reference,
            narrow_value=self._narrow_value,
            tuned_value=tuned,
            layers=layers,
            trials=done,
            examples=examples,
            held_out=held_out,
            seconds=time.monotonic() - start,
        )

    def _layers(self, choice: Choice) -> Iterator[TunedLayer]:
        loss = abs(self._scored_loss)
        for number, unit in enumerate(self._units):
            score = self._scores[number]
            decision, reason = self._decision(number, choice)
            yield TunedLayer(
                path=unit.path,
                layer_class=unit.layer_class,
                score=_share(score.size, loss),
                change=_share(score.change, loss),
                range_verdict=range_verdict(score.outputs, self._dtype),
                decision=decision,
                reason=reason,
            )

    def _decision(self, number: int, choice: Choice) -> tuple[str, str]:
        if choice.needed is None:
            return FLOAT32, "no exceptions within budget were found"
        if number in choice.merged:
            return MERGED, "between exceptions, saves casts"
        if number not in choice.needed:
            unit = self._units[number]
            around = [self._units[n] for n in sorted(choice.needed)]
            for other in around:
                if other.holds(unit):
                    return FLOAT32, f"is in {other.path}"
            return self._dtype, "within budget"
        score = self._scores[number]
        if not score.is_finite:
            return FLOAT32, f"makes inf or nan in {self._dtype}"
        share = _share(score.size, abs(self._scored_loss))
        return FLOAT32, f"alone moves the loss by {percent(share)}"

    @property
    def _narrow_value(self) -> float:
        """The value with no exception; nan if there was no time for it."""
        done = self._trials.done
        return done[0].value if done else math.nan

    def _verdict(
        self, layers: tuple[TunedLayer, ...], tuned: float, *, within: bool
    ) -> str:
        name, count = self._measure.name, len(self._trials.done)
        few = {0: "no layer", 1: "the one layer"}
        all_layers = few.get(len(layers), f"all {len(layers)} layers")
        values = (
            f"the {name} is {self._reference:.4g} in float32, and "
            f"{self._narrow_value:.4g} with {all_layers} in "
            f"{self._dtype} that {self._base.policy} puts there"
        )
        budget = f"with a budget of {percent(self._budget)}"
        if not within:
            return (
                f"The model stays in float32, since {count} trials found no "
                f"exceptions within budget: {values}."
            )
        kept = [each.path for each in layers if each.is_exception]
        if not kept:
            return f"No layer needs float32: {values}, {budget}."
        increase = self._measure.increase(tuned, self._reference)
        return (
            f"{len(kept)} of {len(layers)} layers stay in float32: "
            f"{', '.join(kept)}. The {name} is then {tuned:.4g}, "
            f"{than_in_float32(increase)}, {budget}; "
            f"with none of them it is {self._narrow_value:.4g}."
        )


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.copysign(math.inf, part)


def _base_rules(policy: Any) -> PrecisionRules:
    """Returns rules with a policy in 16 bits."""
    rules = as_rules(policy)
    target = Policy(rules.policy)
    if not has_16_bits(target.compute_dtype):
        raise ValueError(
            "`policy` must compute in float16 or bfloat16, because exceptions "
            "are layers that do not; name one, such as 'mixed_bfloat16'. "
            f"Received: policy={policy!r}, which is {rules.policy!r} here"
        )
    return rules


def _check_budget(budget: Any) -> None:
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real):
        raise TypeError(
            "`budget` must be a float, because it is a share of the loss. "
            f"Received: budget={budget!r}"
        )
    if not 0.0 <= float(budget) < math.inf:
        raise ValueError(
            "`budget` must be finite and at least 0, because it is how much "
            f"worse the loss may be, as a share. Received: budget={budget!r}"
        )


def _check_limits(max_trials: Any, max_seconds: Any) -> None:
    if isinstance(max_trials, bool) or not isinstance(
        max_trials, numbers.Integral
    ):
        raise TypeError(
            "`max_trials` must be an int, because it counts trials. Received: "
            f"max_trials={max_trials!r}"
        )
    if max_trials < 1:
        raise ValueError(
            "`max_trials` must be at least 1, because the first trial says "
            "whether exceptions are needed. Received: "
            f"max_trials={max_trials!r}"
        )
    if max_seconds is not None and (
        isinstance(max_seconds, bool)
        or not isinstance(max_seconds, numbers.Real)
    ):
        raise TypeError(
            "`max_seconds` must be None or a float, because it is a time. "
            f"Received: max_seconds={max_seconds!r}"
        )


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(
            "`seed` must be an int, because random numbers start from it. "
            f"Received: seed={seed!r}"
        )
    if seed < 0:
        raise ValueError(
            "`seed` must be at least 0, because random numbers start from it. "
            f"Received: seed={seed!r}"
        )


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(
            f"The {name} must be finite in float32, because the budget is a "
            "share of it; `mp.find_nonfinite` says where inf or nan comes "
            f"from. Received: {value}"
        )
