"""Mixed-precision training for Keras 3 on TensorFlow.

Conventionally imported as `import tf_mixprec as mp`. The public names are the
ones in `__all__`; every other module path may move between releases.
"""

from tf_mixprec import callbacks
from tf_mixprec._version import __version__
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.loss_scale import DynamicLossScale
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.loss_scale import next_state
from tf_mixprec.loss_scale import presets
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import wrap

__all__ = [
    "DynamicLossScale",
    "LossScaleOptimizer",
    "LossScaleState",
    "LossScaleWarning",
    "StaticLossScale",
    "__version__",
    "callbacks",
    "next_state",
    "presets",
    "wrap",
]
