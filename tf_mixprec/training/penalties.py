"""Regularizers that are given float32."""

from collections.abc import Iterable
from typing import Any

from tf_mixprec.layers.widened_regularizer import WidenedRegularizer
from tf_mixprec.numerics.casting import in_16_bits
from tf_mixprec.optimizers.master_regularizer import MasterRegularizer
from tf_mixprec.training.sixteen_bits import path_of


def widen_regularizers(
    layers: Iterable[Any], *, on_masters: bool
) -> tuple[str, ...]:
    """Makes regularizers of 16-bit outputs and weights add up in float32.

    A cast of the result would be too late: the sum of squares is infinite by
    then. The layers keep it when they are saved or cloned.

    Args:
        layers: Layers that work in 16 bits.
        on_masters: Whether the optimizer keeps masters of 16-bit weights, and
            is to add the gradients of their penalties.

    Returns:
        The paths of the layers that were changed.
    """
    return tuple(
        path_of(layer)
        for layer in layers
        # Of both, and not the second alone where the first is true.
        if any([_widen_activity(layer), _widen_weights(layer, on_masters)])
    )


def _widen_activity(layer: Any) -> bool:
    if not _is_narrow(layer.activity_regularizer):
        return False
    layer.activity_regularizer = WidenedRegularizer(layer.activity_regularizer)
    return True


def _widen_weights(layer: Any, on_masters: bool) -> bool:
    widening = MasterRegularizer if on_masters else WidenedRegularizer
    variables = [
        each
        for each in in_16_bits(layer.trainable_variables)
        if each.regularizer is not None
        and not isinstance(each.regularizer, widening)
    ]
    for each in variables:
        own = each.regularizer
        if isinstance(own, (MasterRegularizer, WidenedRegularizer)):
            own = own.regularizer  # of an earlier `compile`
        each.regularizer = widening(own)
    return bool(variables)


def _is_narrow(regularizer: Any) -> bool:
    return regularizer is not None and not isinstance(
        regularizer, WidenedRegularizer
    )
