"""How gradients are clipped, once they are summed and unscaled."""

import dataclasses
from collections.abc import Sequence

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import gradients as gradient_lists

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
    """Bounds of gradients, in the units of the unscaled gradient; one or none.

    Args:
        global_norm: Of all gradients together: each is multiplied with
            `global_norm / norm` where the norm is larger.
        norm: Of each gradient by itself.
        value: Of each element's absolute value.
    """

    global_norm: float | None = None
    norm: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        """Rejects bounds that are none, and two at once."""
        given = {k: v for k, v in vars(self).items() if v is not None}
        for name, bound in given.items():
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(
                    f"`clip_{name}` must be a float, because gradients are "
                    f"compared with it. Received: clip_{name}={bound!r}"
                )
            if not 0.0 < bound < float("inf"):
                raise ValueError(
                    f"`clip_{name}` must be above 0 and finite, because it is "
                    "the bound of a norm or an absolute value; leave it out "
                    f"to clip nothing. Received: clip_{name}={bound!r}"
                )
        if len(given) > 1:
            received = ", ".join(f"clip_{k}={v!r}" for k, v in given.items())
            raise ValueError(
                "Only one of `clip_global_norm`, `clip_norm` and `clip_value` "
                "must be given, because each bounds the gradients by itself. "
                f"Received: {received}"
            )

    def factor(self, norm: Tensor) -> Tensor:
        """Returns what `global_norm` multiplies every gradient with.

        As `tf.clip_by_global_norm` and Keras compute it.

        Args:
            norm: Scalar float32 tensor: the global norm.
        """
        limit = self.global_norm or float("inf")
        return limit * tf.minimum(1.0 / norm, 1.0 / limit)

    def clips(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        divisor: Tensor,
        norm: Tensor,
    ) -> Tensor:
        """Returns whether gradients exceed the bound, a scalar bool tensor.

        Args:
            gradients: Gradients of the scaled loss, all finite.
            variables: The variable of each.
            divisor: Scalar float32 tensor: what they are to be divided by.
            norm: Scalar float32 tensor: the global norm of the quotients.
        """
        if self.global_norm is not None:
            return norm > self.global_norm
        values = [
            tf.cast(gradient_lists.row_values(g), tf.float32)
            for g, v in zip(gradients, variables, strict=True)
            if g is not None and not gradient_lists.is_overwritten(v)
        ]
        if not values or (self.norm is None and self.value is None):
            return tf.constant(False)
        if self.norm is not None:
            sizes = [tf.sqrt(2.0 * tf.nn.l2_loss(each)) for each in values]
            return tf.reduce_any(tf.stack(sizes) / divisor > self.norm)
        sizes = [tf.reduce_max(tf.abs(each)) for each in values]
        return tf.reduce_any(tf.stack(sizes) / divisor > self.value)

    def each(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """Returns gradients clipped one by one, for `norm` and `value`.

        Args:
            gradients: Unscaled gradients. Sparse ones become dense, since the
                slices of one row add up.
            variables: The variable of each; what is overwritten with its
                gradient (a float8 scale) is left alone.
        """
        norm, value = self.norm, self.value
        if norm is None and value is None:
            return list(gradients)

        def clipped(gradient: Tensor) -> Tensor:
            if value is not None:
                return tf.clip_by_value(gradient, -value, value)
            return tf.clip_by_norm(gradient, norm)

        return [
            g
            if g is None or gradient_lists.is_overwritten(v)
            else clipped(tf.convert_to_tensor(g))
            for g, v in zip(gradients, variables, strict=True)
        ]


NONE = Clipping()
