"""Op-level mixed precision for any TensorFlow function."""

from tf_mixprec.autocast import op_lists as op_lists
from tf_mixprec.autocast.autocast import AutocastFunction as AutocastFunction
from tf_mixprec.autocast.autocast import autocast as autocast
from tf_mixprec.autocast.regions import full_precision as full_precision
from tf_mixprec.autocast.report import AutocastReport as AutocastReport
from tf_mixprec.autocast.report import autocast_report as autocast_report
