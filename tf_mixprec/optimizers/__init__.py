"""Keras optimizers that are safe with 16-bit gradients.

`wrap(optimizer)` returns a `LossScaleOptimizer`. Its parts, one file each:
`gradients` unscales and judges a list of gradients, `live_rule` holds a rule's
numbers on the device, `delegation` makes the wrapper transparent, `ledger`
remembers what a custom loop has already done, `distribution` knows
`tf.distribute`. `MasterWeightOptimizer` stands between it and an optimizer of
16-bit variables; `stacking` puts it there, `masters` has the ways to keep a
master, `master_views` what the optimizer sees of them. How the scale
moves is not here but in `loss_scale/`.
"""

from tf_mixprec.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tf_mixprec.optimizers.master_weight_optimizer import MasterWeightOptimizer
from tf_mixprec.optimizers.shared_loss_scale import SharedLossScale
from tf_mixprec.optimizers.wrap import wrap

__all__ = [
    "LossScaleOptimizer",
    "MasterWeightOptimizer",
    "SharedLossScale",
    "wrap",
]
