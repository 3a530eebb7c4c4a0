"""Which layer of ours does the work of which layer of Keras's."""

import keras

from tf_mixprec.layers import activations
from tf_mixprec.layers import attention
from tf_mixprec.layers import embedding
from tf_mixprec.layers import merging
from tf_mixprec.layers import normalization
from tf_mixprec.layers import pooling
from tf_mixprec.layers import preprocessing
from tf_mixprec.layers import recurrent
from tf_mixprec.layers import regularization
from tf_mixprec.layers import reshaping

# Both take the same config and the same weights.
TWINS: dict[type, type] = {
    keras.layers.ActivityRegularization: regularization.ActivityRegularization,
    keras.layers.AdditiveAttention: attention.AdditiveAttention,
    keras.layers.Attention: attention.Attention,
    keras.layers.AveragePooling1D: pooling.AveragePooling1D,
    keras.layers.AveragePooling2D: pooling.AveragePooling2D,
    keras.layers.AveragePooling3D: pooling.AveragePooling3D,
    keras.layers.BatchNormalization: normalization.BatchNormalization,
    keras.layers.Dot: merging.Dot,
    keras.layers.Embedding: embedding.Embedding,
    keras.layers.GlobalAveragePooling1D: pooling.GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D: pooling.GlobalAveragePooling2D,
    keras.layers.GlobalAveragePooling3D: pooling.GlobalAveragePooling3D,
    keras.layers.GroupNormalization: normalization.GroupNormalization,
    keras.layers.GroupQueryAttention: attention.GroupedQueryAttention,
    keras.layers.LayerNormalization: normalization.LayerNormalization,
    keras.layers.MultiHeadAttention: attention.MultiHeadAttention,
    keras.layers.Normalization: preprocessing.Normalization,
    keras.layers.RMSNormalization: normalization.RMSNormalization,
    keras.layers.Rescaling: preprocessing.Rescaling,
    keras.layers.Softmax: activations.Softmax,
    keras.layers.UnitNormalization: normalization.UnitNormalization,
    keras.layers.UpSampling2D: reshaping.UpSampling2D,
}

# Those that stay in 16 bits and are faster there.
FASTER: dict[type, type] = {keras.layers.LSTM: recurrent.LSTM}


def twin_of(layer_class: type) -> type | None:
    """Returns our twin of a layer class of Keras's, or `None`.

    A subclass has none, since it may compute something else.
    """
    return TWINS.get(layer_class)
