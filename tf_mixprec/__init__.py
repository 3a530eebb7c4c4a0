"""Mixed-precision training for Keras 3 on TensorFlow.

Conventionally imported as `import tf_mixprec as mp`. The public names are the
ones in `__all__`; every other module path may move between releases.
"""

from tf_mixprec import callbacks
from tf_mixprec import layers
from tf_mixprec import schedules
from tf_mixprec._version import __version__
from tf_mixprec.autocast import AutocastReport
from tf_mixprec.autocast import autocast
from tf_mixprec.autocast import autocast_report
from tf_mixprec.autocast import full_precision
from tf_mixprec.autocast import op_lists
from tf_mixprec.conversion import ConversionReport
from tf_mixprec.conversion import convert
from tf_mixprec.diagnostics.audit import audit
from tf_mixprec.diagnostics.compare import compare
from tf_mixprec.diagnostics.diagnose import diagnose
from tf_mixprec.diagnostics.find_nonfinite import find_nonfinite
from tf_mixprec.diagnostics.profile import profile
from tf_mixprec.diagnostics.tune import tune
from tf_mixprec.errors import ConversionWarning
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.loss_scale import DynamicLossScale
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.loss_scale import next_state
from tf_mixprec.loss_scale import presets
from tf_mixprec.numerics import epsilon
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.optimizers import MasterWeightOptimizer
from tf_mixprec.optimizers import SharedLossScale
from tf_mixprec.optimizers import wrap
from tf_mixprec.policies import Policy
from tf_mixprec.policies import PrecisionRules
from tf_mixprec.policies import Recommendation
from tf_mixprec.policies import policy_scope
from tf_mixprec.policies import recommended_policy
from tf_mixprec.policies import rules
from tf_mixprec.training import Checkpoint
from tf_mixprec.training import CompileReport
from tf_mixprec.training import TrainStep
from tf_mixprec.training import compile
from tf_mixprec.training import export_float32
from tf_mixprec.training import fit

__all__ = [
    "AutocastReport",
    "Checkpoint",
    "CompileReport",
    "ConversionReport",
    "ConversionWarning",
    "DynamicLossScale",
    "LossScaleOptimizer",
    "LossScaleState",
    "LossScaleWarning",
    "MasterWeightOptimizer",
    "Policy",
    "PrecisionRules",
    "Recommendation",
    "SharedLossScale",
    "StaticLossScale",
    "TrainStep",
    "__version__",
    "audit",
    "autocast",
    "autocast_report",
    "callbacks",
    "compare",
    "compile",
    "convert",
    "diagnose",
    "epsilon",
    "export_float32",
    "find_nonfinite",
    "fit",
    "full_precision",
    "layers",
    "next_state",
    "op_lists",
    "policy_scope",
    "presets",
    "profile",
    "recommended_policy",
    "rules",
    "schedules",
    "tune",
    "wrap",
]
