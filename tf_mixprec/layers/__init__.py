"""Layers whose inside is float32, whatever the policy outside.

Each does what the layer of Keras's with the same name does, with the same
arguments and weights, and equals it bit for bit under the float32 policy. Under
a policy that computes in 16 bits, it computes in float32 and returns what the
policy says. `Precision` and `CastTo` set the precision of any part of a model.
"""

from tf_mixprec.layers.activations import Softmax
from tf_mixprec.layers.attention import AdditiveAttention
from tf_mixprec.layers.attention import Attention
from tf_mixprec.layers.attention import GroupedQueryAttention
from tf_mixprec.layers.attention import (
    GroupedQueryAttention as GroupQueryAttention,  # its name in keras.layers
)
from tf_mixprec.layers.attention import MultiHeadAttention
from tf_mixprec.layers.cast_to import CastTo
from tf_mixprec.layers.embedding import Embedding
from tf_mixprec.layers.merging import Dot
from tf_mixprec.layers.normalization import BatchNormalization
from tf_mixprec.layers.normalization import GroupNormalization
from tf_mixprec.layers.normalization import LayerNormalization
from tf_mixprec.layers.normalization import RMSNormalization
from tf_mixprec.layers.normalization import UnitNormalization
from tf_mixprec.layers.pooling import AveragePooling1D
from tf_mixprec.layers.pooling import AveragePooling2D
from tf_mixprec.layers.pooling import AveragePooling3D
from tf_mixprec.layers.pooling import GlobalAveragePooling1D
from tf_mixprec.layers.pooling import GlobalAveragePooling2D
from tf_mixprec.layers.pooling import GlobalAveragePooling3D
from tf_mixprec.layers.precision import Precision
from tf_mixprec.layers.preprocessing import Normalization
from tf_mixprec.layers.preprocessing import Rescaling
from tf_mixprec.layers.regularization import ActivityRegularization
from tf_mixprec.layers.reshaping import UpSampling2D
from tf_mixprec.layers.twins import TWINS as TWINS
from tf_mixprec.layers.twins import twin_of as twin_of

__all__ = [
    "ActivityRegularization",
    "AdditiveAttention",
    "Attention",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNormalization",
    "CastTo",
    "Dot",
    "Embedding",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GroupNormalization",
    "GroupQueryAttention",
    "GroupedQueryAttention",
    "LayerNormalization",
    "MultiHeadAttention",
    "Normalization",
    "Precision",
    "RMSNormalization",
    "Rescaling",
    "Softmax",
    "UnitNormalization",
    "UpSampling2D",
]
