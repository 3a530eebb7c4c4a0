"""A model made again from its own config, with other policies in it."""

import inspect
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec.conversion.fused_activations import fitting_activation
from tf_mixprec.conversion.plan import Decision
from tf_mixprec.layers.keras_internals import sublayers
from tf_mixprec.layers.precision import Precision
from tf_mixprec.policies import kinds
from tf_mixprec.policies.scope import policy_scope


class CannotRebuildError(ValueError):
    """A model cannot be made again from its config."""


def rebuilt(
    model: Any, plan: Mapping[int, Decision], target: keras.DTypePolicy
) -> keras.Model:
    """Returns a new model with the policies of a plan and the same state.

    Args:
        model: The model.
        plan: By `id` of a layer, what is to become of it.
        target: The policy for layers that a layer makes for itself.

    Raises:
        CannotRebuildError: With the reason.
    """
    try:
        _check_configs(model)
        config = keras.saving.serialize_keras_object(model)
        objects = _classes(model)
        _rewrite(config, model, plan, None, objects)
        with policy_scope(target):
            new = keras.saving.deserialize_keras_object(
                config, custom_objects=objects, safe_mode=False
            )
            for old_layer, new_layer in pairs(model, new):
                set_policy(plan.get(id(old_layer)), new_layer)
                new_layer.name = old_layer.name
                _build_as(old_layer, new_layer)
    except CannotRebuildError:
        raise
    except Exception as error:  # whatever the code of a layer raises
        raise CannotRebuildError(str(error).strip()) from error
    _copy_state(model, new)
    return new


def set_policy(decision: Decision | None, layer: Any) -> None:
    """Gives a layer the policy that its config could not give it."""
    if decision is None or decision.policy is None:
        return
    same_class = type(layer) is decision.layer_class
    policy = decision.policy if same_class else decision.fallback
    if layer.dtype_policy != policy:
        layer.dtype_policy = policy
    if kinds.is_keras_own(layer) and not isinstance(layer, keras.Model):
        for part in sublayers(layer):
            _set_policy_of_part(part, policy)


def _set_policy_of_part(layer: Any, policy: keras.DTypePolicy) -> None:
    """Gives a policy to what a layer of Keras's made without `dtype=`."""
    if kinds.kind_of(layer) in ("model", "quantized", "untouched"):
        return
    if layer.dtype_policy != policy:
        layer.dtype_policy = policy
    for part in sublayers(layer):
        _set_policy_of_part(part, policy)


def _build_as(old: Any, new: Any) -> None:
    """Builds a layer that is not built, if the one it comes from is.

    Subclassed models are built layer by layer, and so are layers that leave it
    to their `call`: that takes inputs which are not known here.
    """
    if new.built or not old.built:
        return
    if isinstance(new, keras.Model) or type(new).build is keras.Layer.build:
        new.built = True
    else:
        new.build_from_config(old.get_build_config() or {})


def _rewrite(
    node: dict[str, Any],
    layer: Any,
    plan: Mapping[int, Decision],
    inherited: keras.DTypePolicy | None,
    objects: dict[str, Any],
) -> None:
    """Changes the serialized form of a layer and of those inside of it.

    Args:
        node: The serialized form.
        layer: The layer itself.
        plan: By `id` of a layer, what is to become of it.
        inherited: The policy of the layer around it, of which it is a part.
        objects: By name, what deserialization knows beside Keras's own; filled
            with the functions that are found.
    """
    node.pop("compile_config", None)
    if not kinds.is_keras_own(layer):
        # Built later, when the layers that it makes have their policies.
        node.pop("build_config", None)
    config = node["config"]
    decision = plan.get(id(layer))
    policy = decision.policy if decision else inherited
    if decision and decision.layer_class is not type(layer):
        _set_class(node, decision.layer_class)
    if policy is not None and "dtype" in config:
        config["dtype"] = keras.dtype_policies.serialize(policy)
    if isinstance(layer, Precision) and id(layer.layer) in plan:
        inner_policy = plan[id(layer.layer)].policy
        config["policy"] = keras.dtype_policies.serialize(inner_policy)
    fitted = fitting_activation(config.get("activation"), policy)
    _keep_functions(config, layer, objects)
    if "activation" in config and fitted is not None:
        config["activation"] = fitted
    is_part = decision is None or kinds.is_keras_own(layer)
    inner = {child.name: child for child in sublayers(layer)}
    for child_node in _nodes(config):
        child = inner.get(child_node["config"].get("name"))
        if child is not None:
            part_of = policy if is_part else None
            _rewrite(child_node, child, plan, part_of, objects)


def _keep_functions(
    config: dict[str, Any], layer: Any, objects: dict[str, Any]
) -> None:
    """Makes a serialized layer refer to its functions themselves.

    Their serialized form has neither the names around a `lambda` nor what is
    not registered.
    """
    for key, value in config.items():
        if not isinstance(value, dict) or value.get("class_name") not in (
            "__lambda__",
            "function",
        ):
            continue
        function = getattr(layer, key, getattr(layer, f"_{key}", None))
        if callable(function):
            name = f"function_{id(function)}"
            objects[name] = function
            config[key] = {
                "module": "builtins",
                "class_name": "function",
                "config": name,
                "registered_name": "function",
            }


def _set_class(node: dict[str, Any], layer_class: type) -> None:
    """Makes a serialized layer one of another class."""
    name = keras.saving.get_registered_name(layer_class)
    own = name == layer_class.__name__
    node["class_name"] = layer_class.__name__
    node["module"] = "keras.layers" if own else layer_class.__module__
    node["registered_name"] = None if own else name


def _nodes(structure: Any) -> Iterator[dict[str, Any]]:
    """Yields the outermost serialized objects in a config."""
    if isinstance(structure, dict):
        if "class_name" in structure and isinstance(
            structure.get("config"), dict
        ):
            yield structure
            return
        structure = list(structure.values())
    if isinstance(structure, (list, tuple)):
        for each in structure:
            yield from _nodes(each)


def _check_configs(model: Any) -> None:
    """Rejects models of which the config does not say how they were made.

    What `keras.Model` returns for a class without `get_config` has the default
    of each argument and not what was given.
    """
    if (
        isinstance(model, keras.Model)
        and type(model).get_config.__module__.split(".")[0] == "keras"
        and not kinds.is_keras_own(model)
        and _arguments(type(model)) - _FOLLOWED_ARGUMENTS
    ):
        raise CannotRebuildError(
            f"`{type(model).__name__}` has arguments and no `get_config`"
        )
    for layer in sublayers(model):
        _check_configs(layer)


def _arguments(layer_class: Any) -> set[str]:
    """Returns the names of the arguments of a constructor."""
    variadic = (
        inspect.Parameter.VAR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    parameters = inspect.signature(layer_class.__init__).parameters.values()
    return {p.name for p in parameters if p.kind not in variadic}


# What Keras gives back in any case: its own arguments of models.
_FOLLOWED_ARGUMENTS = {
    "dtype",
    "inputs",
    "layers",
    "name",
    "outputs",
    "self",
    "trainable",
}


def _classes(model: Any) -> dict[str, Any]:
    """Returns the classes outside of Keras that a model is made of.

    They need not be registered: the model is here, and not in a file.
    """
    result: dict[str, Any] = {}
    waiting = [model]
    while waiting:
        layer = waiting.pop()
        if not kinds.is_keras_own(layer):
            result[type(layer).__name__] = type(layer)
            result[keras.saving.get_registered_name(type(layer))] = type(layer)
        waiting += sublayers(layer)
    return result


def pairs(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each layer of a model with the one it has become, outside first.

    Raises:
        CannotRebuildError: If the new model is made of other layers.
    """
    yield old, new
    old_layers = sublayers(old)
    new_layers = sublayers(new)
    if len(old_layers) != len(new_layers):
        raise CannotRebuildError(
            f"`{type(old).__name__}` made from its config has "
            f"{len(new_layers)} layers, and {len(old_layers)} before"
        )
    for a, b in zip(old_layers, new_layers, strict=True):
        yield from pairs(a, b)


def _copy_state(old: Any, new: Any) -> None:
    """Copies weights, random states, and what is trainable."""
    for a, b in pairs(old, new):
        if a.trainable != b.trainable:
            b.trainable = a.trainable
    old_variables, new_variables = _state(old), _state(new)
    if [v.shape for v in old_variables] != [v.shape for v in new_variables]:
        raise CannotRebuildError(
            f"`{type(old).__name__}` made from its config has other variables, "
            "so the weights cannot be copied"
        )
    for a, b in zip(old_variables, new_variables, strict=True):
        b.assign(a)


def _state(model: Any) -> list[Any]:
    """Returns the variables, without those of metrics."""
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if id(v) not in metrics]
