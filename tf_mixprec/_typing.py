"""Names for what Keras leaves untyped. Imports nothing of ours."""

from typing import Any
from typing import TypeAlias

# A tensor of the active Keras backend, or what converts to one.
Tensor: TypeAlias = Any
# A dense tensor, a `tf.IndexedSlices`, or `None` where there is no gradient.
Gradient: TypeAlias = Any
# A `keras.Variable`, or on the TensorFlow backend a `tf.Variable`.
Variable: TypeAlias = Any
