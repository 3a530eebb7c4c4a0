"""Imports go downwards only."""

import ast
import pathlib

import pytest

import tf_mixprec

PACKAGE = pathlib.Path(tf_mixprec.__file__).parent

# Lowest first; those on one line do not import each other.
LAYERS = [
    ["_table", "_typing", "_version", "errors"],
    ["numerics"],
    ["loss_scale", "policies", "reports", "schedules"],
    ["optimizers", "layers", "autocast"],
    ["conversion"],
    ["training"],
    ["diagnostics"],
    ["callbacks"],
    [""],  # `tf_mixprec/__init__.py` itself
    ["cli"],
    ["__main__"],
]
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = ("numerics", "loss_scale")
KNOW_TENSORFLOW = (
    "numerics/rounded_outside.py",
    "autocast/autocast.py",
    "autocast/broadcasting.py",
    "autocast/casts.py",
    "autocast/custom_gradients.py",
    "autocast/emit.py",
    "autocast/islands.py",
    "autocast/kernels.py",
    "autocast/op_lists.py",
    "autocast/op_order.py",
    "autocast/parameters.py",
    "autocast/plan.py",
    "autocast/planner.py",
    "autocast/recompute.py",
    "autocast/regions.py",
    "autocast/report.py",
    "autocast/signature.py",
    "autocast/tensorflow_internals.py",
    "autocast/trace.py",
    "autocast/wide_sums.py",
    "optimizers/clipping.py",
    "optimizers/distribution.py",
    "optimizers/gradient_masks.py",
    "optimizers/gradients.py",
    "optimizers/local_variables.py",
    "optimizers/master_views.py",
    "optimizers/nonfinite_counts.py",
    "optimizers/norm_record.py",
    "optimizers/random_bits.py",
    "optimizers/replica_step.py",
    "optimizers/rounded_products.py",
    "optimizers/tensorflow_internals.py",
    "optimizers/traced_apart.py",
    "optimizers/tracing.py",
    "optimizers/variable_view.py",
    "layers/fused.py",
    "policies/hardware.py",
    "policies/matrix_timing.py",
    "policies/tensorflow_internals.py",
    "reports/summary.py",
    "training/backward.py",
    "training/checkpoint.py",
    "training/checkpoint_data.py",
    "training/checkpoint_file.py",
    "training/fit.py",
    "training/gradient_sums.py",
    "training/keras_internals.py",
    "training/keras_loop.py",
    "training/keras_losses.py",
    "training/loss_hook.py",
    "training/micro_batches.py",
    "training/misuse.py",
    "training/model_autocast.py",
    "training/replicas.py",
    "training/snapshot.py",
    "training/step_function.py",
    "training/train_step.py",
    "diagnostics/audit/ops.py",
    "diagnostics/audit/trace.py",
    "diagnostics/collected.py",
    "diagnostics/comparison_step.py",
    "diagnostics/covered_calls.py",
    "diagnostics/data.py",
    "diagnostics/float_bits.py",
    "diagnostics/gradient_step.py",
    "diagnostics/probed_step.py",
    "diagnostics/profile/graph.py",
    "diagnostics/profile/measuring.py",
    "diagnostics/profile/ops.py",
    "diagnostics/profile/profile.py",
    "diagnostics/profile/steps.py",
    "diagnostics/profile/timing.py",
    "diagnostics/taps.py",
    "diagnostics/tensor_pairs.py",
    "diagnostics/tensor_statistics.py",
    "diagnostics/traced.py",
    "diagnostics/tune/measure.py",
    "diagnostics/tune/scores.py",
    "diagnostics/update_statistics.py",
    "diagnostics/updates.py",
    "callbacks/experiment_facts.py",
    "callbacks/last_batch.py",
    "callbacks/update_statistics.py",
    "cli/memory.py",
)
# What TensorFlow has no public word for; a test of its own fails if it moves.
KNOW_TENSORFLOW_PRIVATELY = (
    "autocast/tensorflow_internals.py",
    "policies/tensorflow_internals.py",
)


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    """Returns the first name below `tf_mixprec` of a file."""
    relative = path.relative_to(PACKAGE).with_suffix("")
    name = relative.parts[0]
    return "" if name == "__init__" else name


def imports(path):
    """Yields the full name of each module or name that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", modules(), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports_go_downwards(path):
    part = part_of(path)
    for name in imports(path):
        if name.split(".")[0] != "tf_mixprec":
            continue
        imported = f"{name}.".split(".")[1]
        if part == imported:
            continue
        if imported not in LEVELS:  # a public name, from the top
            imported = ""
        assert LEVELS[imported] < LEVELS[part], (
            f"{path} is in the layer of {part!r} and imports {name!r}"
        )


@pytest.mark.parametrize(
    "path", modules(), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_what_a_file_may_import(path):
    relative = path.relative_to(PACKAGE).as_posix()
    names = list(imports(path))
    assert not [n for n in names if n.startswith("keras.src")]
    if relative not in KNOW_TENSORFLOW_PRIVATELY:
        assert not [n for n in names if n.startswith("tensorflow.python")]
    roots = {name.split(".")[0] for name in names}
    if relative not in KNOW_TENSORFLOW:
        assert "tensorflow" not in roots
    if part_of(path) in PURE:
        assert "keras.Variable" not in path.read_text()


def test_every_file_is_in_a_layer():
    assert {part_of(path) for path in modules()} == set(LEVELS)


def test_an_upward_import_is_found(tmp_path):
    """The test can fail."""
    path = tmp_path / "upward.py"
    path.write_text("from tf_mixprec.optimizers import wrap\n")
    (name,) = imports(path)
    assert LEVELS[name.split(".")[1]] > LEVELS["numerics"]
