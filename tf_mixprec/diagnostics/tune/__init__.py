"""The fewest layers that must stay in float32.

`units` are the layers that can be moved, `scores` ranks them, `ranges` says
what overflows, and `search` tries sets of them in `trials`.
"""

from tf_mixprec.diagnostics.tune.tune import tune

__all__ = ["tune"]
