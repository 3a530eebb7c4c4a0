"""Where the time of a step goes.

`steps` makes what is timed, `timing` and `measuring` time it, `graph` and `ops`
read its operations, and `findings` judges the numbers.
"""

from tf_mixprec.diagnostics.profile.profile import profile

__all__ = ["profile"]
