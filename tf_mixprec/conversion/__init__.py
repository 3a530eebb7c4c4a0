"""Models in another precision."""

from tf_mixprec.conversion.convert import convert
from tf_mixprec.conversion.report import ConversionReport
from tf_mixprec.conversion.report import ConvertedLayer

__all__ = ["ConversionReport", "ConvertedLayer", "convert"]
