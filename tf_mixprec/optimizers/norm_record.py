"""The global norm of the gradients of each step, kept on the device."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers.noted_variables import noted
from tf_mixprec.optimizers.noted_variables import on_this_replica

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

CAPACITY = 2**16  # steps: 256 KiB


class Norms(NamedTuple):
    """What is known of the steps that were made.

    Args:
        norms: Float32 array: the norm of each, in no order; of the last
            `CAPACITY` steps if there were more.
        steps: Int: how many there were.
        clipped: Int: how many of them were clipped.
    """

    norms: np.ndarray
    steps: int
    clipped: int


class NormRecord:
    """Norms of unscaled gradients before clipping, of steps that are made."""

    def __init__(self) -> None:
        self._norms = noted((CAPACITY,), "float32", "grad_norms")
        # Of 64 bits on TensorFlow: a GPU holds no int32 variable.
        self._counts = noted((2,), "int", "norm_counts")

    def add(self, is_made: Tensor, norm: Tensor, is_clipped: Tensor) -> None:
        """Notes a step.

        Args:
            is_made: Scalar bool tensor: whether it is not skipped. As all
                arguments the same on every replica.
            norm: Scalar float32 tensor: the global norm.
            is_clipped: Scalar bool tensor: whether a bound was exceeded.
        """
        norms = on_this_replica(self._norms)
        counts = on_this_replica(self._counts)
        # What a skipped step writes is overwritten by the next one.
        norms.scatter_nd_update([[counts[0] % CAPACITY]], [norm])
        flags = tf.stack([is_made, is_made & is_clipped])
        counts.assign_add(tf.cast(flags, counts.dtype))

    def reset(self) -> None:
        """Forgets all steps, from outside of the replicas."""
        self._counts.assign(ops.zeros_like(self._counts))

    def read(self) -> Norms:
        """Returns what is known. Waits for the device."""
        steps, clipped = (int(n) for n in ops.convert_to_numpy(self._counts))
        norms = ops.convert_to_numpy(self._norms)[:steps].copy()
        return Norms(norms, steps, clipped)
