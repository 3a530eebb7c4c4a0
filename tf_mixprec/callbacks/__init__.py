"""Keras callbacks."""

from tf_mixprec.callbacks.loss_scale_logger import LossScaleLogger
from tf_mixprec.callbacks.overflow_guard import OverflowGuard
from tf_mixprec.callbacks.terminate_on_nan import TerminateOnNaN

__all__ = ["LossScaleLogger", "OverflowGuard", "TerminateOnNaN"]
