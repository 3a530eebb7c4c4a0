"""Pure numerics: arrays in, arrays out. No variables, no optimizer."""

from tf_mixprec.numerics.casting import widened
from tf_mixprec.numerics.finite import found_inf

__all__ = ["found_inf", "widened"]
