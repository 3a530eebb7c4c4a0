"""A small case, or a reason to have none, for each layer that Keras has."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

L = keras.layers

SCALES = (1e-4, 1.0, 300.0, 7e4)


@dataclasses.dataclass(frozen=True)
class Values:
    """What one input is filled with.

    Args:
        shape: The whole shape, with the batch.
        draw: Takes a random generator, returns an array of that shape.
        dtype: The dtype of the input.
        is_scaled: Whether the scale of a call multiplies it.
    """

    shape: tuple[int, ...]
    draw: Callable[[Any], Any]
    dtype: str = "float32"
    is_scaled: bool = False

    def array(self, generator, scale):
        """Returns the array of a call at a scale."""
        array = self.draw(generator)
        if self.dtype != "string":
            array = array.astype(self.dtype)
        return array * np.float32(scale) if self.is_scaled else array


def normal(*shape, is_scaled=True):
    return Values(shape, lambda g: g.normal(size=shape), is_scaled=is_scaled)


def between(low, high, *shape):
    return Values(shape, lambda g: g.uniform(low, high, shape))


def pixels(*shape):
    return Values(shape, lambda g: g.integers(0, 256, shape))


def ids(high, *shape):
    return Values(shape, lambda g: g.integers(0, high, shape), "int32")


def words(*shape):
    return Values(shape, lambda g: g.choice([*"abc"], shape), "string")


def mask(*shape):
    """Returns values of which the first row is masked as a whole."""

    def draw(generator):
        array = generator.integers(0, 2, shape)
        array[0] = 0
        return array

    return Values(shape, draw, "bool")


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and what it is called with.

    Args:
        name: The name of its class in `keras.layers`.
        inputs: `Values` in a list or a dict, if the layer takes one; a tuple
            for several arguments of the call.
        arguments: Positional arguments of the class; functions are called, for
            the layers in them.
        keywords: Other arguments of the class.
        call: Other arguments of the call; `Values` are inputs of the model.
        label: What tells it from other cases of the class.
    """

    name: str
    inputs: Any
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""

    def __str__(self):
        return f"{self.name}_{self.label}" if self.label else self.name

    @property
    def leaves(self):
        """The inputs of the model, in their order."""
        leaves = keras.tree.flatten((self.inputs, self.call))
        return [leaf for leaf in leaves if isinstance(leaf, Values)]

    @property
    def scales(self):
        """The scales that make sense for the inputs."""
        return SCALES if any(v.is_scaled for v in self.leaves) else (1.0,)

    def make(self):
        """Returns the layer."""
        arguments = [a() if callable(a) else a for a in self.arguments]
        return getattr(keras.layers, self.name)(*arguments, **self.keywords)

    def arrays(self, scale):
        """Returns the inputs of the model, the same ones at each call."""
        generator = np.random.default_rng(0)
        return [values.array(generator, scale) for values in self.leaves]


def case(name, inputs, *arguments, call=None, label="", **keywords):
    return Case(name, inputs, arguments, keywords, call or {}, label)


def cases(names, inputs, *arguments, **keywords):
    """Returns cases of classes that take the same arguments."""
    return [case(n, inputs, *arguments, **keywords) for n in names.split()]


def activations(names):
    """Returns cases of functions that take no arguments of their own."""
    return [case("Activation", FEATURES, n, label=n) for n in names.split()]


def random(names, inputs, *arguments):
    """Returns cases of classes that draw random numbers in training."""
    return cases(names, inputs, *arguments, seed=1, call={"training": True})


FEATURES = normal(4, 6)
SEQUENCE = normal(2, 6, 4)
PICTURE = normal(2, 6, 6, 3)
VOLUME = normal(1, 4, 4, 4, 2)
PAIR = [normal(4, 6), normal(4, 6)]
IMAGES = pixels(2, 8, 8, 3)
LABELED = {"images": PICTURE, "labels": between(0.0, 1.0, 2, 3)}
BOXES = {"boxes": between(0.0, 100.0, 2, 3, 4), "labels": ids(4, 2, 3)}
STATE = normal(4, 3, is_scaled=False)
TRAINING = {"training": True}

ACTIVATIONS = [
    *activations("celu elu exponential gelu glu hard_shrink hard_sigmoid"),
    *activations("hard_silu hard_tanh leaky_relu linear log_sigmoid"),
    *activations("log_softmax mish relu relu6 selu sigmoid silu soft_shrink"),
    *activations("softmax softplus softsign sparse_plus sparse_sigmoid"),
    *activations("sparsemax squareplus tanh tanh_shrink"),
    *cases("ELU LeakyReLU Softmax", FEATURES),
    case("PReLU", FEATURES, "uniform"),
    case("ReLU", FEATURES, max_value=6.0),
    case("Softmax", FEATURES, call={"mask": mask(4, 6)}, label="masked"),
]

MERGING = [
    *cases("Add Average Concatenate Maximum Minimum Multiply Subtract", PAIR),
    case("Dot", PAIR, axes=1),
    case("Dot", PAIR, axes=1, normalize=True, label="normalize"),
]

PRODUCTS = [
    case("Dense", FEATURES, 5),
    case("Dense", FEATURES, 5, activation="softmax", label="softmax"),
    case("EinsumDense", SEQUENCE, "abc,cd->abd", (6, 5), bias_axes="d"),
    *cases("Conv1D Conv1DTranspose SeparableConv1D", SEQUENCE, 3, 3),
    *cases("Conv2D Conv2DTranspose SeparableConv2D", PICTURE, 3, 3),
    *cases("Conv3D Conv3DTranspose", VOLUME, 3, 2),
    case("DepthwiseConv1D", SEQUENCE, 3),
    case("DepthwiseConv2D", PICTURE, 3),
]

EMBEDDINGS = [
    case("Embedding", ids(5000, 4, 6), 5000, 4),
    case("ReversibleEmbedding", ids(5000, 4, 6), 5000, 4),
    case(
        "ReversibleEmbedding",
        SEQUENCE,
        50,
        4,
        call={"reverse": True},
        label="reverse",
    ),
]

LISTED = [normal(2, 3, 8), normal(2, 5, 8)]
QUERY_VALUE = (normal(2, 3, 8), normal(2, 5, 8))
MASKS = {"mask": [mask(2, 3), mask(2, 5)]}
MASKED = {"attention_mask": mask(2, 3, 5), "use_causal_mask": True}

ATTENTION = [
    case("AdditiveAttention", LISTED),
    case("AdditiveAttention", LISTED, call=MASKS, label="masked"),
    case("Attention", LISTED),
    case(
        "Attention",
        LISTED,
        call={"use_causal_mask": True},
        label="causal",
        score_mode="concat",
    ),
    case("Attention", LISTED, call=MASKS, label="masked", use_scale=True),
    case("GroupQueryAttention", QUERY_VALUE, 4, 4, 2),
    case(
        "GroupQueryAttention", QUERY_VALUE, 4, 4, 2, call=MASKED, label="masked"
    ),
    case("MultiHeadAttention", QUERY_VALUE, 2, 4),
    case("MultiHeadAttention", QUERY_VALUE, 2, 4, call=MASKED, label="masked"),
]

NORMALIZATION = [
    case("BatchNormalization", FEATURES),
    case("BatchNormalization", FEATURES, call=TRAINING, label="training"),
    case("GroupNormalization", PICTURE, 3),
    case("LayerNormalization", FEATURES),
    case("RMSNormalization", FEATURES),
    case("SpectralNormalization", FEATURES, lambda: L.Dense(5)),
    case(
        "SpectralNormalization",
        FEATURES,
        lambda: L.Dense(5),
        call=TRAINING,
        label="training",
    ),
    case("UnitNormalization", FEATURES),
]

POOLING = [
    *cases("AdaptiveAveragePooling1D AdaptiveMaxPooling1D", SEQUENCE, 2),
    *cases("AdaptiveAveragePooling2D AdaptiveMaxPooling2D", PICTURE, 2),
    *cases("AdaptiveAveragePooling3D AdaptiveMaxPooling3D", VOLUME, 2),
    *cases("AveragePooling1D MaxPooling1D", SEQUENCE, 3),
    *cases("AveragePooling2D MaxPooling2D", PICTURE, 3),
    *cases("AveragePooling3D MaxPooling3D", VOLUME, 2),
    *cases("GlobalAveragePooling1D GlobalMaxPooling1D", SEQUENCE),
    *cases("GlobalAveragePooling2D GlobalMaxPooling2D", PICTURE),
    *cases("GlobalAveragePooling3D GlobalMaxPooling3D", VOLUME),
]

RESHAPING = [
    *cases("Cropping1D UpSampling1D ZeroPadding1D", SEQUENCE, 2),
    *cases("Cropping2D ZeroPadding2D", PICTURE, 1),
    *cases("Cropping3D ZeroPadding3D", VOLUME, 1),
    case("Flatten", SEQUENCE),
    case("Permute", SEQUENCE, (2, 1)),
    case("RepeatVector", FEATURES, 3),
    case("Reshape", FEATURES, (3, 2)),
    case("UpSampling2D", PICTURE, 2),
    case("UpSampling2D", PICTURE, interpolation="bilinear", label="bilinear"),
    case("UpSampling3D", VOLUME, 2),
]

RECURRENT = [
    case("Bidirectional", SEQUENCE, lambda: L.LSTM(3)),
    case("ConvLSTM1D", normal(2, 3, 5, 2), 2, 2),
    case("ConvLSTM2D", normal(2, 3, 4, 4, 2), 2, 2),
    case("ConvLSTM3D", normal(1, 2, 3, 3, 3, 2), 2, 2),
    case("GRU", SEQUENCE, 3, return_sequences=True),
    case("GRUCell", (FEATURES, STATE), 3),
    case("LSTM", SEQUENCE, 3, return_sequences=True),
    case("LSTMCell", (FEATURES, [STATE, STATE]), 3),
    case("RNN", SEQUENCE, lambda: L.GRUCell(3)),
    case("SimpleRNN", SEQUENCE, 3),
    case("SimpleRNNCell", (FEATURES, STATE), 3),
    case(
        "StackedRNNCells",
        (FEATURES, [[STATE, STATE], STATE]),
        lambda: [L.LSTMCell(3), L.GRUCell(3)],
    ),
]

REGULARIZATION = [
    case("ActivityRegularization", FEATURES, l1=0.1, l2=0.2),
    *random("AlphaDropout Dropout GaussianDropout", FEATURES, 0.5),
    *random("GaussianNoise", FEATURES, 0.5),
    *random("SpatialDropout1D", SEQUENCE, 0.5),
    *random("SpatialDropout2D", PICTURE, 0.5),
    *random("SpatialDropout3D", VOLUME, 0.5),
]


CORE = [
    case("Identity", FEATURES),
    case("Lambda", FEATURES, lambda: lambda x: x / 2),
    case("Masking", SEQUENCE),
    # What 16 bits make equal to the mask value.
    case("Masking", between(1.0001, 1.0002, 2, 6, 4), 1.0, label="near"),
    case("TimeDistributed", SEQUENCE, lambda: L.Dense(3)),
    case(
        "TimeDistributed",
        SEQUENCE,
        lambda: L.LayerNormalization(),
        label="normalization",
    ),
]

PREPROCESSING = [
    case("CategoryEncoding", ids(5, 4, 3), 5),
    case(
        "CategoryEncoding",
        ids(5, 4, 3),
        5,
        output_mode="count",
        call={"count_weights": normal(4, 3)},
        label="count",
    ),
    case("Discretization", FEATURES, [-1e5, -1.0, 0.0, 2048.0, 2049.0]),
    case("HashedCrossing", [ids(5000, 4), ids(5000, 4)], 5000),
    case("Hashing", ids(5000, 4, 3), 5000),
    case("IntegerLookup", ids(9, 4, 3), vocabulary=[3, 4000, 7]),
    case(
        "MaxNumBoundingBoxes",
        {"images": IMAGES, "bounding_boxes": BOXES},
        2,
        bounding_box_format="xyxy",
    ),
    case("MelSpectrogram", normal(2, 256), 64, 32, num_mel_bins=8),
    case(
        "Normalization",
        normal(4, 3),
        mean=[1.0, 2.0, 3.0],
        variance=[4.0, 5.0, 1e6],
    ),
    case("Rescaling", FEATURES, 1e-5, 0.5),
    case("STFTSpectrogram", normal(2, 256, 1), "log", 32, 16, window=None),
    case("StringLookup", words(4, 3), vocabulary=["a", "b"]),
    case(
        "TextVectorization",
        words(4),
        vocabulary=["a", "b"],
        output_sequence_length=4,
    ),
]

AUGMENTATION = [
    case("AutoContrast", IMAGES),
    case("CenterCrop", PICTURE, 4, 4),
    case(
        "ContrastLimitedAdaptiveHistogramEqualization",
        IMAGES,
        tile_grid_size=(2, 2),
    ),
    case("Pipeline", PICTURE, lambda: [L.CenterCrop(2, 2), L.Rescaling(1e-5)]),
    case("Pipeline", IMAGES, lambda: [L.Equalization()], label="equalization"),
    case("Resizing", PICTURE, 5, 9),
    *random("AugMix RandAugment RandomElasticTransform RandomErasing", IMAGES),
    *random("CutMix MixUp", LABELED),
    *random("RandomBrightness RandomContrast RandomHue", IMAGES, 0.5),
    *random("RandomColorDegeneration RandomSaturation", IMAGES, 0.5),
    *random("RandomColorJitter", IMAGES, (0, 255), 0.3, 0.3, 0.3, 0.3),
    *random("RandomCrop", PICTURE, 4, 4),
    *random("RandomFlip RandomPerspective", PICTURE),
    *random("RandomGaussianBlur RandomGrayscale RandomInvert", IMAGES),
    *random("RandomPosterization", IMAGES, 4),
    *random("RandomRotation RandomZoom", PICTURE, 0.3),
    *random("RandomSharpness", IMAGES, 0.5),
    # Keras cannot make a RandomShear(0.3) from its own config.
    *random("RandomShear", PICTURE, (0.0, 0.3), (0.0, 0.3)),
    *random("RandomTranslation", PICTURE, 0.3, 0.3),
    *random("Solarization", IMAGES, 0.3, 0.3),
]

NO_CASE = {
    "Equalization": "is left out of functional models by Keras; see `Pipeline`",
    "FlaxLayer": "runs a flax module, which has dtypes of its own",
    "InputLayer": "computes nothing",
    "JaxLayer": "runs a JAX function, which has dtypes of its own",
    "Layer": "is abstract",
    "TFSMLayer": "runs a SavedModel, which has dtypes of its own",
    "TorchModuleWrapper": "needs the torch backend",
    "Wrapper": "is abstract",
}

_ALL = [
    *ACTIVATIONS,
    *ATTENTION,
    *AUGMENTATION,
    *CORE,
    *EMBEDDINGS,
    *MERGING,
    *NORMALIZATION,
    *POOLING,
    *PREPROCESSING,
    *PRODUCTS,
    *RECURRENT,
    *REGULARIZATION,
    *RESHAPING,
]
# An older Keras lacks some.
CASES = {str(c): c for c in _ALL if hasattr(keras.layers, c.name)}
