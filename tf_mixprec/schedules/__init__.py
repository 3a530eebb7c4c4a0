"""Learning-rate schedules."""

from tf_mixprec.schedules.warmup import Warmup

__all__ = ["Warmup"]
