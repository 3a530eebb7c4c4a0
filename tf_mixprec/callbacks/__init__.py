"""Keras callbacks."""

from tf_mixprec.callbacks.adaptive_precision import AdaptivePrecision
from tf_mixprec.callbacks.clip_monitor import ClipMonitor
from tf_mixprec.callbacks.experiment_log import ExperimentLog
from tf_mixprec.callbacks.loss_scale_logger import LossScaleLogger
from tf_mixprec.callbacks.numerics_monitor import NumericsMonitor
from tf_mixprec.callbacks.overflow_guard import OverflowGuard
from tf_mixprec.callbacks.precision_drift import PrecisionDrift
from tf_mixprec.callbacks.terminate_on_nan import TerminateOnNaN
from tf_mixprec.callbacks.update_monitor import UpdateMonitor
from tf_mixprec.errors import DeadUpdateWarning
from tf_mixprec.errors import NumericsWarning

__all__ = [
    "AdaptivePrecision",
    "ClipMonitor",
    "DeadUpdateWarning",
    "ExperimentLog",
    "LossScaleLogger",
    "NumericsMonitor",
    "NumericsWarning",
    "OverflowGuard",
    "PrecisionDrift",
    "TerminateOnNaN",
    "UpdateMonitor",
]
