"""A float32 model from the masters of a 16-bit one."""

from typing import Any

import keras

from tf_mixprec.conversion import convert


def export_float32(model: keras.Model, optimizer: Any = None) -> keras.Model:
    """Returns the model in float32, with the masters as weights.

    Converting a model with 16-bit variables keeps what these hold; the
    optimizer knows what was trained.

    Args:
        model: The model that the optimizer trains.
        optimizer: What `mp.wrap` returned, or a `mp.MasterWeightOptimizer`.
            Defaults to the one that the model is compiled with.

    Returns:
        A new model, not compiled. Variables without a master have the values
        of the model's own.

    Raises:
        TypeError: If the optimizer keeps no masters of any kind.
        ValueError: If the model cannot be built anew, see `mp.convert`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model = mp.convert(model, mp.PrecisionRules([], "bfloat16"))
    >>> report = mp.compile(model, "adam", "mse")
    >>> history = model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    >>> exported = mp.export_float32(model)
    >>> exported.layers[0].kernel.dtype
    'float32'
    """
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    masters = getattr(optimizer, "master_weights", None)
    if not callable(masters):
        raise TypeError(
            "`optimizer` must be what `mp.wrap` returns or a "
            "`mp.MasterWeightOptimizer`, because it holds the float32 values; "
            "after a loop of your own give it as the second argument. Without "
            "one, `mp.convert(model, 'float32')` keeps what the variables "
            f"hold. Received: optimizer={optimizer!r}"
        )
    values = masters(model)
    exported = convert(model, "float32")
    for own, new in zip(model.variables, exported.variables, strict=True):
        if own.path in values:
            new.assign(values[own.path])
    return exported
