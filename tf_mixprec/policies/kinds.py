"""What a layer does, as far as its precision is concerned.

One word for each way in which 16 bits can or cannot hurt. The order of the
tables is the order in which they are tried.
"""

from collections.abc import Callable
from typing import Any

import keras

KINDS = (
    "add_loss",
    "attention",
    "average",
    "convolution",
    "dot",
    "embedding",
    "matmul",
    "model",
    "normalization",
    "other",
    "output",
    "preprocessing",
    "quantized",
    "recurrent",
    "regularized",
    "resize",
    "softmax",
    "untouched",
)

# Functions of which results grow or cancel beyond what 16 bits hold.
_SOFTMAX_LIKE = (
    "exponential",
    "log_sigmoid",
    "log_softmax",
    "softmax",
    "softplus",
    "sparsemax",
    "squareplus",
)


def _classes(names: str) -> tuple[type, ...]:
    """Returns layer classes by name; those that this Keras has."""
    return tuple(
        getattr(keras.layers, name)
        for name in names.split()
        if hasattr(keras.layers, name)
    )


_BY_CLASS = {
    "regularized": _classes("ActivityRegularization"),
    "embedding": _classes("Embedding ReversibleEmbedding"),
    "normalization": _classes(
        "BatchNormalization GroupNormalization LayerNormalization "
        "RMSNormalization SpectralNormalization UnitNormalization"
    ),
    "softmax": _classes("Softmax"),
    "attention": _classes(
        "AdditiveAttention Attention GroupQueryAttention MultiHeadAttention"
    ),
    "average": _classes(
        "Average AveragePooling1D AveragePooling2D AveragePooling3D "
        "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
        "AdaptiveAveragePooling1D AdaptiveAveragePooling2D "
        "AdaptiveAveragePooling3D"
    ),
    "resize": _classes("Resizing UpSampling2D"),
    "dot": _classes("Dot"),
    "matmul": _classes("Dense EinsumDense"),
    "convolution": _classes(
        "Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose "
        "DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D"
    ),
    "recurrent": _classes(
        "RNN Bidirectional ConvLSTM1D ConvLSTM2D ConvLSTM3D GRU LSTM SimpleRNN "
        "GRUCell LSTMCell SimpleRNNCell StackedRNNCells"
    ),
    "preprocessing": _classes(
        "AugMix AutoContrast CategoryEncoding CenterCrop "
        "ContrastLimitedAdaptiveHistogramEqualization CutMix Discretization "
        "Equalization HashedCrossing Hashing IntegerLookup "
        "MaxNumBoundingBoxes MelSpectrogram MixUp Normalization Pipeline "
        "RandAugment RandomBrightness RandomColorDegeneration "
        "RandomColorJitter RandomContrast RandomCrop RandomElasticTransform "
        "RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue "
        "RandomInvert RandomPerspective RandomPosterization RandomRotation "
        "RandomSaturation RandomSharpness RandomShear RandomTranslation "
        "RandomZoom Rescaling STFTSpectrogram Solarization StringLookup "
        "TextVectorization"
    ),
}


def kind_of(layer: Any, *, is_output: bool = False) -> str:
    """Returns the kind of a layer: one of `KINDS`.

    Args:
        layer: A layer.
        is_output: Whether the model returns what the layer returns.
    """
    if isinstance(layer, keras.layers.TimeDistributed):
        return kind_of(layer.layer, is_output=is_output)
    for kind, holds in _BY_FACT.items():
        if holds(layer):
            return kind
    if is_output:
        return "output"
    if _is_softmax_like(getattr(layer, "activation", None)):
        return "softmax"
    for kind, classes in _BY_CLASS.items():
        if isinstance(layer, classes):
            return kind
    return "other"


def is_keras_own(layer: Any) -> bool:
    """Returns whether the class of a layer is part of Keras."""
    return type(layer).__module__.split(".")[0] == "keras"


def _is_float(layer: Any) -> bool:
    """Returns whether a layer works on floats: others must keep their dtype."""
    if isinstance(layer, keras.layers.InputLayer):
        return False
    return keras.backend.is_float_dtype(layer.compute_dtype)


def _adds_loss(layer: Any) -> bool:
    """Returns whether the code of a layer outside of Keras calls `add_loss`."""
    if is_keras_own(layer):
        return False
    code = getattr(type(layer).call, "__code__", None)
    return code is not None and "add_loss" in code.co_names


def _is_softmax_like(activation: Any) -> bool:
    return getattr(activation, "__name__", None) in _SOFTMAX_LIKE


_BY_FACT: dict[str, Callable[[Any], bool]] = {
    "model": lambda layer: isinstance(layer, keras.Model),
    "untouched": lambda layer: not _is_float(layer),
    "quantized": lambda layer: layer.dtype_policy.quantization_mode is not None,
    "add_loss": _adds_loss,
    "regularized": lambda layer: layer.activity_regularizer is not None,
}
