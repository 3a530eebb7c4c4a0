"""Keras callbacks."""

from tf_mixprec.callbacks.loss_scale_logger import LossScaleLogger

__all__ = ["LossScaleLogger"]
