"""Makes `docs/layers.md`: what becomes of each layer of Keras.

Run it in a checkout with the package installed: `python docs/make_layers.py`.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The cases and the machine are what tests and benchmarks know already.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import keras  # noqa: E402
import timing  # noqa: E402
from conversion import test_layer_sweep as sweep  # noqa: E402
from conversion.layer_cases import CASES  # noqa: E402
from conversion.layer_cases import NO_CASE  # noqa: E402

PATH = ROOT / "docs" / "layers.md"

HEADER = """\
<!-- Made by `python docs/make_layers.py`; do not edit. -->

# What becomes of each layer

What `mp.convert(model, "mixed_float16")` or `"mixed_bfloat16"` makes of the
layers inside of a model, by the rules `mp.rules.SAFE`:

- **16 bits**: inputs, weights and results are 16-bit numbers.
- **float32 inside**: inputs reach the layer as they are, it computes in
  float32, and only what it returns is rounded to 16 bits.
- **float32**: it also returns float32.
- **untouched**: it works on integers or strings, or keeps its own dtype.

Output layers are not in the table: they become float32, whatever their kind.
Nor are second names, such as `AvgPool1D` for `AveragePooling1D`.

The errors are the largest differences from float32, in ulps of the 16-bit
dtype, over inputs of about 0.0001, 1, 300 and 70000, or whole pixels, ids and
words. A correctly rounded result is off by 0.5 at most. An ulp is the distance
of 16-bit numbers at the size of the result, or of the mean result where that is
larger; for matrix products and convolutions, at the size of the sum of the
absolute products. What the notes name is left out. Measured with TensorFlow
{tensorflow} and Keras {keras} on {processor}.

| layer | kind | `SAFE` | float16 | bfloat16 | notes |
|---|---|---|---|---|---|
"""


def groups():
    """Returns names of cases by class, kind, and what becomes of the layer."""
    result = {}
    for name in sorted(CASES, key=str.lower):
        key = (CASES[name].name, *sweep.decided(name))
        result.setdefault(key, []).append(name)
    return result


def rows():
    """Returns the columns that do not depend on a machine."""
    return [(_title(key, names), *key[1:]) for key, names in groups().items()]


def written_rows():
    """Returns the same columns of the table that is there."""
    lines = PATH.read_text().splitlines()
    cells = [line[2:-2].split(" | ") for line in lines]
    table = [tuple(row[:3]) for row in cells if len(row) == 6]
    return table[table.index(("layer", "kind", "`SAFE`")) + 1 :]


def is_of_newer_keras():
    """Returns whether the table is of a newer Keras than this one."""
    found = re.search(r"Keras (\d+)\.(\d+)", PATH.read_text())
    written = tuple(int(part) for part in found.groups())
    own = tuple(int(part) for part in keras.__version__.split(".")[:2])
    return written > own


def _title(key, names):
    labels = [CASES[name].label for name in names]
    others = sum(each[0] == key[0] for each in groups())
    if others == 1 or "" in labels:
        return key[0]
    return f"{key[0]} ({', '.join(labels)})"


def _error(names, dtype):
    """Returns the largest error, where no limit applies."""
    errors = [
        sweep.compared(name, dtype, scale).ulps
        for name in names
        for scale in CASES[name].scales
        if sweep.limit_of(name, dtype, scale) is None
    ]
    return f"{max(errors):.2g}" if errors else "–"


def _notes(names):
    notes = []
    if CASES[names[0]].name in sweep.HAS_16_BIT_PROJECTIONS:
        notes.append("projections in 16 bits")
    for limit in sweep.LIMITS:
        covered = [name for name in names if name in limit.names.split()]
        if not covered:
            continue
        labels = ", ".join(CASES[name].label for name in covered)
        some = len(covered) < len(names)
        notes.append(f"{labels}: {limit.reason}" if some else limit.reason)
    return "; ".join(dict.fromkeys(notes))


def table():
    """Returns the whole page."""
    text = HEADER.format(**timing.machine())
    for key, names in groups().items():
        errors = [_error(names, dtype) for dtype in sweep.DTYPES]
        cells = [_title(key, names), *key[1:], *errors, _notes(names)]
        text += f"| {' | '.join(cells)} |\n"
    text += "\nNot measured: "
    reasons = [f"`{name}` {reason}" for name, reason in NO_CASE.items()]
    return text + ";\n".join(reasons) + ".\n"


if __name__ == "__main__":
    PATH.write_text(table())
