"""The batches that `mp.tune` scores and verifies with."""

import itertools

from tf_mixprec.diagnostics.data import Data
from tf_mixprec.diagnostics.data import size_of
from tf_mixprec.diagnostics.subject import Batch

MOST_BATCHES = 32  # that verify: each trial goes through all of them


def split_batches(data: Data, seed: int) -> tuple[Batch, list[Batch]]:
    """Returns a batch to score with, and others to verify with.

    Full ones only, if there are any: another size is another trace. Where there
    is a single one, it does both.

    Args:
        data: The data. Of arrays, examples are drawn from all over them.
        seed: Of the order in which they are drawn.

    Raises:
        ValueError: If a data set is empty.
    """
    batches = list(itertools.islice(data.batches(seed=seed), MOST_BATCHES + 2))
    if not batches:
        raise ValueError(
            "`x` must have at least one batch, because the loss is computed "
            "on it. Received: a data set without any"
        )
    sizes = [size_of(each) for each in batches]
    full = [b for b, n in zip(batches, sizes, strict=True) if n == sizes[0]]
    return full[0], full[1 : MOST_BATCHES + 1] or full
