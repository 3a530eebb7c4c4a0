"""What these layers need of Keras that has no public name.

`tests/layers/test_keras_internals.py` fails when Keras moves one.
"""

from typing import Any

from tf_mixprec.layers.float32_inside import PolicyOutside
from tf_mixprec.layers.float32_inside import widened_dtype
from tf_mixprec.layers.float32_inside import widened_tensors
from tf_mixprec.policies.output_dtypes import cast


def sublayers(layer: Any) -> list[Any]:
    """Returns the layers that a layer is directly made of."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


class Float32Scores(PolicyOutside):
    """Multi-head attention whose scores are float32.

    Everything between the projections is: the product of queries and keys, the
    scaling, the mask, the softmax, dropout, and the product with the values.
    """

    def _compute_attention(
        self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        dtype = self.compute_dtype
        wide = widened_dtype(dtype)
        # Not in `build`: whoever gives a layer another policy gives it to all
        # that is inside.
        for layer in (self._softmax, self._dropout_layer):
            if layer.compute_dtype != wide:
                layer.dtype_policy = wide
        # Kernels of flash attention take 16 bits, and sum in float32.
        if not self._flash_attention:
            query, key, value = widened_tensors((query, key, value), wide)
        output, scores = super()._compute_attention(
            query, key, value, *args, **kwargs
        )
        return cast(output, dtype), scores
