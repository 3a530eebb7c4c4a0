"""What is known of the gradients of a step before it is taken."""

from collections.abc import Sequence
from typing import NamedTuple

from tf_mixprec._typing import Tensor


class Verdict(NamedTuple):
    """Scalar tensors, the same on every replica; `None` for what there is not.

    Args:
        found_inf: Bool: whether the loss scale is to back off.
        skips: Bool: whether the step is skipped. `None` if that is
            `found_inf`; it is not where bad micro-batches were left out.
        norm: Float32: the global norm of the unscaled gradients, where the
            inner optimizer clips by it.
        factor: Float32: what to multiply the gradients with in the place of
            the reciprocal of the loss scale.
    """

    found_inf: Tensor
    skips: Tensor | None = None
    norm: Tensor | None = None
    factor: Tensor | None = None

    @property
    def is_skipped(self) -> Tensor:
        """Scalar bool tensor: whether the step is skipped."""
        return self.found_inf if self.skips is None else self.skips

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that there are."""
        return tuple(k for k, v in self._asdict().items() if v is not None)

    @property
    def tensors(self) -> list[Tensor]:
        """What these fields hold."""
        return [value for value in self if value is not None]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Verdict":
        """Returns a verdict with the same fields, made of other tensors."""
        return self._replace(**dict(zip(self.names, tensors, strict=True)))
