"""How often a loss scale has grown and backed off, and between which bounds."""

from typing import NamedTuple

from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers.noted_variables import noted


class Moves(NamedTuple):
    """What is known of the moves of a loss scale.

    Args:
        growths: Int: how often it has become larger.
        backoffs: Int: how often it has become smaller.
        smallest: Float, dimensionless: the smallest since the last restart.
        largest: Float, dimensionless: the largest.
    """

    growths: int
    backoffs: int
    smallest: float
    largest: float


class ScaleMoves:
    """Follows a loss scale on the device.

    Args:
        loss_scale: Scalar float32 tensor: where it starts.
    """

    def __init__(self, loss_scale: Tensor):
        # In float64, which holds counts, and every float32 scale.
        self._moves = noted((4,), "float64", "scale_moves")
        self.restart_bounds(loss_scale)

    def restart_bounds(self, loss_scale: Tensor) -> None:
        """Forgets the bounds and keeps the counts, outside of the replicas.

        Args:
            loss_scale: Scalar float32 tensor: where the scale is now.
        """
        now = ops.cast(loss_scale, "float64")
        growths, backoffs, _, _ = ops.unstack(self._moves, 4)
        self._moves.assign(ops.stack([growths, backoffs, now, now]))

    def note(self, before: Tensor, after: Tensor) -> None:
        """Notes a step.

        Args:
            before: Scalar float32 tensor: the scale of the step, the same on
                every replica.
            after: Scalar float32 tensor: the scale of the next step.
        """
        growths, backoffs, smallest, largest = ops.unstack(self._moves, 4)
        before, after = (ops.cast(each, "float64") for each in (before, after))
        moved = [
            growths + ops.cast(after > before, "float64"),
            backoffs + ops.cast(after < before, "float64"),
            ops.minimum(smallest, ops.minimum(before, after)),
            ops.maximum(largest, ops.maximum(before, after)),
        ]
        distribution.assign(self._moves, ops.stack(moved))

    def read(self) -> Moves:
        """Returns what is known. Waits for the device."""
        growths, backoffs, smallest, largest = ops.convert_to_numpy(self._moves)
        return Moves(
            int(growths), int(backoffs), float(smallest), float(largest)
        )
