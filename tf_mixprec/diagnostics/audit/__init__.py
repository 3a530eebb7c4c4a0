"""What is wrong with the precision of a model, without data.

`trace` calls the model once on symbols; `layers`, `products` and `ops` read it,
`facts` puts that together, and `numerics`, `constants`, `speed` and `training`
judge it.
"""

from tf_mixprec.diagnostics.audit.audit import audit

__all__ = ["audit"]
