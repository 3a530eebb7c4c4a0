"""Pure numerics: arrays in, arrays out. No variables, no optimizer."""

from tf_mixprec.numerics.casting import widened
from tf_mixprec.numerics.epsilon import epsilon
from tf_mixprec.numerics.finite import found_inf
from tf_mixprec.numerics.finite import found_inf_by_sums

__all__ = ["epsilon", "found_inf", "found_inf_by_sums", "widened"]
