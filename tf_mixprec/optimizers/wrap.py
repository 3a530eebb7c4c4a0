"""`wrap`: from whatever names an optimizer to a `LossScaleOptimizer`."""

from typing import Any

import keras
from keras import ops

from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.loss_scale import presets
from tf_mixprec.loss_scale.rule import DynamicLossScale
from tf_mixprec.optimizers import arguments
from tf_mixprec.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tf_mixprec.optimizers.master_weight_optimizer import MasterWeightOptimizer


def wrap(
    optimizer: keras.optimizers.Optimizer | str | dict[str, Any],
    preset: str | LossScaleRule | None = None,
    *,
    storage: str | None = None,
    rounding: str | None = None,
    seed: int | None = None,
    **options: Any,
) -> LossScaleOptimizer:
    """Returns the optimizer, made safe for 16-bit gradients.

    Args:
        optimizer: A `keras.optimizers.Optimizer`, a name such as `"adam"`, or
            a config from `keras.optimizers.serialize`. One that is wrapped
            already is returned unchanged; Keras's own `LossScaleOptimizer` is
            converted, with the scale it has reached.
        preset: The name of a rule in `mp.presets`, such as `"torch"`, or a
            rule: `mp.DynamicLossScale` or `mp.StaticLossScale`. Defaults to
            what `mp.LossScaleOptimizer` does.
        storage: How float32 masters of 16-bit variables are kept: `"float32"`
            or `"remainder"`, see `mp.MasterWeightOptimizer`. Defaults to
            `"float32"`.
        rounding: How they are rounded: `"nearest"` or `"stochastic"`; the
            latter together with `master_weights=False` for bfloat16 variables
            without masters. Defaults to `"nearest"`.
        seed: Of stochastic rounding. Defaults to 0.
        **options: Arguments of `mp.LossScaleOptimizer`; they win over the
            preset.

    Returns:
        A `mp.LossScaleOptimizer`. If the optimizer has a `loss_scale_factor`,
        that is kept as a fixed scale.

    Raises:
        TypeError: If `optimizer` or `preset` is of another type.
        ValueError: If options are given for an optimizer that is wrapped
            already, if a preset is not known, if a `loss_scale_factor` is set
            and a dynamic scale asked for, if a preset is given with
            `dynamic=False`, or if an option is unknown or out of range.

    Example:

    >>> import tf_mixprec as mp
    >>> optimizer = mp.wrap("adam", preset="torch", growth_interval=500)
    >>> float(optimizer.loss_scale)
    65536.0
    """
    optimizer = _optimizer(optimizer)
    if isinstance(optimizer, LossScaleOptimizer):
        given = {
            "storage": storage,
            "rounding": rounding,
            "seed": seed,
            "preset": preset,
        }
        given = {k: v for k, v in given.items() if v is not None} | options
        if given:
            raise ValueError(
                "`optimizer` must not be wrapped already when options are "
                "given, because they would be ignored. Set them on it, as in "
                "`optimizer.growth_interval = 500`, or wrap "
                "`optimizer.inner_optimizer`. Received: "
                f"{given}"
            )
        return optimizer
    kept = {"storage": storage, "rounding": rounding, "seed": seed}
    kept = {k: v for k, v in kept.items() if v is not None}
    if kept:
        optimizer = _with_masters(
            optimizer, options.get("master_weights"), kept
        )
    if preset is not None and options.get("dynamic") is False:
        raise ValueError(
            "`preset` and `dynamic=False` must not be given together, because "
            "a preset says how the scale moves; give `initial_scale` with "
            f"`dynamic=False`. Received: preset={preset!r}"
        )
    chosen = {**_rule_options(preset), **_renamed(options)}
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _converted(optimizer, chosen, "initial_scale" in options)
    return _with_fixed_factor(optimizer, chosen)


def _optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    """Returns the optimizer that a name or a config stands for."""
    if isinstance(optimizer, dict):
        if "class_name" not in optimizer:
            raise ValueError(
                "A config must have a 'class_name', because it says which "
                "optimizer it is of; `keras.optimizers.serialize` writes one. "
                f"Received: optimizer={optimizer!r}"
            )
        # Also Keras's own and those of tf.keras: this class reads them all.
        if optimizer["class_name"].startswith("LossScaleOptimizer"):
            return LossScaleOptimizer.from_config(optimizer["config"])
        return arguments.deserialize_optimizer(optimizer)
    if isinstance(optimizer, str):
        return keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a Keras optimizer instance, a name or a "
            "config, because it is what makes the updates; make an instance "
            f"of a class first. Received: optimizer={optimizer!r}"
        )
    return optimizer


def _with_masters(
    optimizer: keras.optimizers.Optimizer,
    master_weights: bool | str | None,
    kept: dict[str, Any],
) -> keras.optimizers.Optimizer:
    """Returns the optimizer with what it is to keep of 16-bit variables.

    Args:
        optimizer: The optimizer.
        master_weights: As given to `wrap`.
        kept: The arguments of `MasterWeightOptimizer` that were given.
    """
    wrappers = (keras.optimizers.LossScaleOptimizer, MasterWeightOptimizer)
    if isinstance(optimizer, wrappers):
        raise ValueError(
            "`storage`, `rounding` and `seed` must be given together with the "
            "optimizer that makes the update, because masters stand around "
            f"it; wrap `optimizer.inner_optimizer`. Received: {kept}"
        )
    if master_weights is not False:
        return MasterWeightOptimizer(optimizer, **kept)
    if "storage" in kept:
        raise ValueError(
            "`storage` must not be given with `master_weights=False`, because "
            f"there are no masters then. Received: {kept}"
        )
    return MasterWeightOptimizer(optimizer, storage=None, **kept)


def _rule_options(preset: Any) -> dict[str, Any]:
    """Returns the constructor arguments that make the preset's rule."""
    if preset is None:
        return {}
    if isinstance(preset, str):
        if preset not in presets.__all__:
            raise ValueError(
                f"`preset` must be one of {', '.join(presets.__all__)}, "
                "because only these frameworks' rules are known. Received: "
                f"preset={preset!r}"
            )
        preset = getattr(presets, preset)
    if not isinstance(preset, (DynamicLossScale, StaticLossScale)):
        raise TypeError(
            "`preset` must be a name in `mp.presets`, a `mp.DynamicLossScale` "
            "or a `mp.StaticLossScale`, because it says how the scale moves. "
            f"Received: preset={preset!r}"
        )
    return {
        **preset.get_config(),
        "dynamic": isinstance(preset, DynamicLossScale),
    }


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with Keras's name for the interval replaced."""
    options = dict(options)
    if "dynamic_growth_steps" in options and "growth_interval" not in options:
        options["growth_interval"] = options.pop("dynamic_growth_steps")
    return options


def _with_fixed_factor(
    optimizer: keras.optimizers.Optimizer, options: dict[str, Any]
) -> LossScaleOptimizer:
    """Returns the wrapper, keeping a `loss_scale_factor` as a fixed scale."""
    factor = optimizer.loss_scale_factor
    if factor is None:
        return LossScaleOptimizer(optimizer, **options)
    options = {"initial_scale": factor, "dynamic": False, **options}
    if options["dynamic"] or options["initial_scale"] != factor:
        raise ValueError(
            "`loss_scale_factor` must not be set on an optimizer that gets "
            "another loss scale, because it would be replaced; leave it out, "
            "or keep it as a fixed scale with `mp.wrap(optimizer)`. Received: "
            f"loss_scale_factor={factor!r}, options={options}"
        )
    optimizer.loss_scale_factor = None
    return LossScaleOptimizer(optimizer, **options)


def _converted(
    optimizer: keras.optimizers.LossScaleOptimizer,
    options: dict[str, Any],
    replaces_scale: bool,
) -> LossScaleOptimizer:
    """Returns our wrapper in the place of Keras's, with its state.

    Args:
        optimizer: Keras's wrapper, built or not.
        options: Arguments of our constructor.
        replaces_scale: Whether they give a scale to go on from. Otherwise it
            is the one that Keras has reached, moved into the bounds, since
            Keras has none and may have reached 0 or inf.
    """
    start = optimizer.initial_scale
    options = {
        "initial_scale": start,
        "growth_interval": optimizer.dynamic_growth_steps,
        "min_scale": min(start, 1.0),
        "max_scale": max(start, 2.0**24),
        **options,
    }
    wrapped = LossScaleOptimizer(optimizer.inner_optimizer, **options)
    if not optimizer.built:
        return wrapped
    wrapped.build(optimizer._trainable_variables)
    if wrapped.dynamic:
        wrapped.good_steps.assign(optimizer.step_counter)
    if wrapped.dynamic and not replaces_scale:
        wrapped.loss_scale.assign(
            ops.clip(
                optimizer.dynamic_scale, wrapped.min_scale, wrapped.max_scale
            )
        )
    return wrapped
