"""Which layers stay in float32: the search, from scores to a set."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from tf_mixprec.diagnostics.tune.scores import Score
from tf_mixprec.diagnostics.tune.search import Numbers
from tf_mixprec.diagnostics.tune.search import shortest_prefix
from tf_mixprec.diagnostics.tune.search import without_unneeded
from tf_mixprec.diagnostics.tune.trials import OutOfTrialsError
from tf_mixprec.diagnostics.tune.trials import Trials
from tf_mixprec.diagnostics.tune.units import Unit

_NONE: Numbers = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A set of exceptions.

    Args:
        needed: The numbers of the units that the budget needs in float32;
            `None` if no set within budget was found.
        merged: Those that join them, to save casts.
        is_complete: Whether the search came to its end.
    """

    needed: Numbers | None
    merged: Numbers = _NONE
    is_complete: bool = True


def chosen(
    trials: Trials,
    units: Sequence[Unit],
    scores: Sequence[Score],
    allowed: float,
    seed: int,
) -> Choice:
    """Returns the fewest exceptions that are within budget.

    ```text
    none; if that is not enough
    the highest scores, as many as needed: first as many as it takes for what
      the others change to be no more than what is allowed
    of these, by halves, without those that are not needed
    with cheap layers between them that save casts
    ```

    Args:
        trials: Tries sets.
        units: The layers.
        scores: Of the layers.
        allowed: How much the loss may grow.
        seed: Of the order of equal scores.
    """
    try:
        return _searched(trials, units, scores, allowed, seed)
    except OutOfTrialsError:
        return Choice(needed=trials.best, is_complete=False)


def _searched(
    trials: Trials,
    units: Sequence[Unit],
    scores: Sequence[Score],
    allowed: float,
    seed: int,
) -> Choice:
    if trials.is_enough(_NONE):
        return Choice(needed=_NONE)
    order = ranking(scores, seed)
    guess = _guess([scores[n].change for n in order], allowed)
    needed = shortest_prefix(order, guess, trials.is_enough)
    if needed is None:
        return Choice(needed=None)
    # The last one is: with one less it was not enough.
    doubtful = [n for n in reversed(order) if n in needed][1:]
    needed = without_unneeded(needed, doubtful, trials.is_enough)
    merged = _merged(trials, units, needed)
    if merged:
        try:
            if trials.is_enough(needed | merged):
                return Choice(needed=needed, merged=merged)
        except OutOfTrialsError:
            pass  # casts are no reason to go on
    return Choice(needed=needed)


def ranking(scores: Sequence[Score], seed: int) -> list[int]:
    """Returns the numbers of scores, the largest first.

    Args:
        scores: The scores.
        seed: Of the order of equal ones.
    """
    shuffled = np.random.default_rng(seed).permutation(len(scores))
    return sorted(shuffled.tolist(), key=lambda n: -scores[n].size)


def _guess(changes: Sequence[float], allowed: float) -> int:
    """Returns how many to leave out for the rest to change little enough.

    Changes by rounding have any sign: their squares add up.
    """
    rest = 0.0
    for count in range(len(changes), 0, -1):
        rest += changes[count - 1] ** 2
        if not rest <= allowed**2:
            return count
    return 1


def _merged(trials: Trials, units: Sequence[Unit], needed: Numbers) -> Numbers:
    merged: set[int] = set()
    casts = trials.casts(needed)
    for run in _cheap_runs(units, needed):
        fewer = trials.casts(needed | merged | run)
        if fewer < casts:
            merged, casts = merged | run, fewer
    return frozenset(merged)


def _cheap_runs(units: Sequence[Unit], needed: Numbers) -> Iterator[set[int]]:
    """Yields cheap layers that follow each other, in 16 bits."""
    run: set[int] = set()
    for number, unit in enumerate(units):
        if unit.is_cheap and number not in needed:
            run.add(number)
        elif run:
            yield run
            run = set()
    if run:
        yield run
