"""Which few of many things are needed, found in few tries.

Pure: things are numbers, and a try is a function of a set of them. Whatever is
enough is taken to stay enough with more in it.
"""

from collections.abc import Callable
from collections.abc import Sequence

Numbers = frozenset[int]
IsEnough = Callable[[Numbers], bool]


def shortest_prefix(
    order: Sequence[int], guess: int, is_enough: IsEnough
) -> Numbers | None:
    """Returns the shortest beginning of a sequence that is enough.

    From the guess on by steps of 1, 2, 4, ... towards the end of it, then by
    halves: O(log n) tries, and two for a guess that is right.

    Args:
        order: The sequence. Nothing of it is known not to be enough.
        guess: How long it probably is.
        is_enough: Whether a set is enough.

    Returns:
        The set; `None` if all together are not enough.
    """
    low, high, step = 0, len(order) + 1, 1  # `low` fails; `high` is not known
    size = min(max(guess, 1), len(order))
    while high - low > 1:
        if is_enough(frozenset(order[:size])):
            high = size
            size = high - step if low == 0 else (low + high) // 2
        else:
            low = size
            is_open = high > len(order)
            size = low + step if is_open else (low + high) // 2
        step *= 2
        size = min(max(size, low + 1), high - 1, len(order))
    return frozenset(order[:high]) if high <= len(order) else None


def without_unneeded(
    kept: Numbers, doubtful: Sequence[int], is_enough: IsEnough
) -> Numbers:
    """Returns a set without what it does not need, dropped by halves.

    Args:
        kept: A set that is enough.
        doubtful: Those of it that may not be needed, the most doubtful first.
        is_enough: Whether a set is enough; asked again for a set it knows, it
            must not try again.
    """
    if not doubtful:
        return kept
    without = kept - frozenset(doubtful)
    if is_enough(without):
        return without
    if len(doubtful) == 1:
        return kept
    middle = len(doubtful) // 2
    kept = without_unneeded(kept, doubtful[:middle], is_enough)
    return without_unneeded(kept, doubtful[middle:], is_enough)
