"""Every public name is documented, sorted, and serializable where it may be."""

import doctest
import inspect
import json
import pathlib
import re
import types

import keras
import pytest

import tf_mixprec as mp
from tf_mixprec import _table
from tf_mixprec import numerics
from tf_mixprec.autocast import regions
from tf_mixprec.autocast import report as autocast_report
from tf_mixprec.loss_scale import presets
from tf_mixprec.numerics import casting
from tf_mixprec.numerics import finite
from tf_mixprec.numerics import formats

ROOT = pathlib.Path(__file__).parent.parent


def public_objects():
    """Yields the dotted name and the object of all that users can reach."""
    for name in mp.__all__:
        value = getattr(mp, name)
        if isinstance(value, types.ModuleType):
            for inner in value.__all__:
                yield f"{name}.{inner}", getattr(value, inner)
        else:
            yield name, value


DOCUMENTED = [
    pytest.param(value, id=name)
    for name, value in public_objects()
    if inspect.isclass(value) or inspect.isfunction(value)
]


def parameters(value):
    if issubclass(type(value), type) and issubclass(value, Exception):
        return []
    if value in mp.layers.TWINS.values():  # those of a layer of Keras's
        return []
    return [
        p
        for p in inspect.signature(value).parameters.values()
        if p.name not in ("self", "args")
    ]


@pytest.mark.parametrize(
    "module",
    [mp, mp.callbacks, mp.layers, mp.op_lists, mp.presets, mp.rules, numerics],
)
def test_all_is_sorted_and_importable(module):
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name)
    assert len(mp.__all__) <= 44


@pytest.mark.parametrize("value", DOCUMENTED)
def test_docstring_has_arguments_and_an_example(value):
    doc = inspect.getdoc(value)
    assert doc
    assert doc.splitlines()[0].endswith(".")
    if issubclass(type(value), type) and issubclass(value, Warning):
        return
    assert "\nExample:" in doc
    if value in mp.layers.TWINS.values():
        assert "the arguments of `keras.layers." in " ".join(doc.split())
        return
    for parameter in parameters(value):
        assert re.search(rf"\n    \*{{0,2}}{parameter.name}: ", doc), (
            parameter.name
        )
    if parameters(value):
        assert "\nArgs:" in doc


@pytest.mark.parametrize(
    "value",
    [
        mp.Checkpoint,
        mp.DynamicLossScale,
        mp.LossScaleOptimizer,
        mp.SharedLossScale,
        mp.StaticLossScale,
        mp.TrainStep,
        mp.audit,
        mp.autocast,
        mp.autocast_report,
        mp.compare,
        mp.diagnose,
        mp.find_nonfinite,
        mp.fit,
        mp.profile,
        mp.wrap,
    ],
)
def test_docstring_says_what_is_raised(value):
    assert "\nRaises:" in inspect.getdoc(value)


def test_every_preset_is_documented():
    doc = inspect.getdoc(presets)
    for name in presets.__all__:
        assert f"\n    {name}: " in doc


@pytest.mark.parametrize("value", DOCUMENTED)
def test_every_public_argument_is_annotated(value):
    for parameter in parameters(value):
        assert parameter.annotation is not inspect.Parameter.empty, (
            parameter.name
        )


@pytest.mark.parametrize(
    "make",
    [
        mp.DynamicLossScale,
        mp.StaticLossScale,
        lambda: mp.wrap("adam"),
        lambda: mp.presets.deepspeed,
        lambda: mp.Policy("mixed_float16"),
        lambda: mp.rules.SAFE,
    ],
)
def test_what_holds_config_is_serializable(make):
    config = make().get_config()
    assert json.loads(json.dumps(config)) == config
    serialized = keras.saving.serialize_keras_object(make())
    assert serialized["registered_name"].startswith("tf_mixprec>")


@pytest.mark.parametrize(
    "module",
    [
        _table,
        casting,
        finite,
        mp.autocast,
        autocast_report,
        mp.op_lists,
        regions,
        mp.loss_scale.rule,
        mp.loss_scale.state,
        mp.loss_scale.update,
        mp.optimizers.loss_scale_optimizer,
        mp.optimizers.wrap,
        mp.conversion.convert,
        mp.conversion.report,
        mp.audit,
        mp.compare,
        mp.diagnose,
        mp.find_nonfinite,
        mp.profile,
        formats,
        mp.optimizers.shared_loss_scale,
        mp.training.checkpoint,
        mp.training.compile,
        mp.training.fit,
        mp.training.report,
        mp.training.train_step,
        mp.policies.policy,
        mp.policies.recommendation,
        mp.policies.precision_rules,
        mp.policies.scope,
    ],
    ids=lambda module: getattr(module, "__name__", "wrap"),
)
def test_examples_run(module):
    if inspect.isfunction(module):  # the function of the module's name
        module = inspect.getmodule(module)
    globals_ = {**vars(module), "next_state": mp.next_state, "mp": mp}
    failures, count = doctest.testmod(module, extraglobs=globals_)
    assert (failures, count > 0) == (0, True)


@pytest.mark.parametrize(
    "name", ["README.md", "docs/recipe.md", "docs/diagnose.md"]
)
def test_the_examples_in_the_documents_run(name, tmp_path, monkeypatch):
    text = (ROOT / name).read_text()
    monkeypatch.chdir(tmp_path)  # they save files
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "readme"})
