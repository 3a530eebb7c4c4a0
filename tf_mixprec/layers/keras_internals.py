"""What these layers need of Keras that has no public name.

`tests/layers/test_keras_internals.py` fails when Keras moves one.
"""

from typing import Any

import keras

from tf_mixprec.layers.float32_inside import PolicyOutside
from tf_mixprec.layers.float32_inside import widened_dtype
from tf_mixprec.layers.float32_inside import widened_tensors
from tf_mixprec.layers.widened_regularizer import WidenedRegularizer
from tf_mixprec.policies.policy import Policy

# What Keras puts in place of a masked score in `ops.dot_product_attention`: a
# row with nothing else becomes the mean of the values.
MASKED = -0.7 * 3.38953e38


def sublayers(layer: Any) -> list[Any]:
    """Returns the layers that a layer is directly made of."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


class Float32Scores(PolicyOutside):
    """Multi-head attention whose scores are float32.

    The product of queries and keys, the scaling, the mask, the softmax and
    dropout are. The probabilities are then rounded to the compute dtype for the
    product with the values, as kernels of flash attention do: their sum is 1,
    so that the product is no larger than the values.
    """

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        self._widen_scores()
        # Kernels of flash attention take 16 bits, and sum in float32.
        narrow = self._computes_in_16_bits and not self._flash_attention
        if narrow:
            query, key = widened_tensors((query, key), "float32")
        # Keras's two ways to go differ where a row is fully masked.
        if (
            not narrow
            or len(query.shape) != 4
            or self._dropout_layer.rate > 0.0
            or return_attention_scores
            or getattr(self, "_return_attention_scores", False)
        ):
            if return_attention_scores:
                kwargs["return_attention_scores"] = True
            return super()._compute_attention(
                query, key, value, attention_mask, training, **kwargs
            )
        scores = keras.ops.einsum("bqnh,bknh->bnqk", query, key)
        scores = scores / query.shape[-1] ** 0.5
        if attention_mask is not None:
            mask = keras.ops.cast(attention_mask, "bool")
            if len(mask.shape) < 4:  # the same for all heads
                mask = keras.ops.expand_dims(mask, -3)
            scores = keras.ops.where(mask, scores, MASKED)
        probabilities = self._softmax(scores)
        return keras.ops.einsum("bnqk,bknh->bqnh", probabilities, value), None

    def _get_common_kwargs_for_sublayer(self) -> dict[str, Any]:
        # The projections get the activity regularizer, on 16-bit outputs.
        arguments = super()._get_common_kwargs_for_sublayer()
        regularizer = arguments["activity_regularizer"]
        if regularizer is not None:
            arguments["activity_regularizer"] = WidenedRegularizer(regularizer)
        return arguments

    def _widen_scores(self) -> None:
        # Not in `build`: whoever gives a layer another policy gives it to all
        # that is inside.
        dtype = self._policy.compute_dtype
        wide = widened_dtype(dtype)
        layers = [self._softmax]
        if self._dropout_layer.rate > 0.0:
            layers.append(self._dropout_layer)
        for layer in layers:
            # What comes out of the last one is multiplied with the values.
            output = dtype if layer is layers[-1] else wide
            policy = Policy(wide, output_dtype=output)
            if layer.dtype_policy != policy:
                layer.dtype_policy = policy
