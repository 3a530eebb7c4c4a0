"""Every layer once or more, with inputs to call it on."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and its inputs.

    Args:
        name: The class, in `keras.layers` and mostly in `tf_mixprec.layers`.
        shapes: Shapes of the inputs.
        arguments: Arguments of the class.
        call_arguments: Arguments of the call.
        listed: Whether the inputs are one list.
        scale: What inputs are multiplied with; large ones are such that Keras's
            layer overflows or loses digits in float16.
        label: What tells it from other cases of the class.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    call_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    listed: bool = False
    scale: float = 1.0
    label: str = ""

    def __str__(self) -> str:
        return f"{self.name}_{self.label}" if self.label else self.name

    def inputs(self, seed=0):
        """Returns float32 arrays, or ids for an embedding."""
        generator = np.random.default_rng(seed)
        if self.name == "Embedding":
            return [generator.integers(0, 4000, s) for s in self.shapes]
        return [
            (self.scale * generator.normal(size=s)).astype("float32")
            for s in self.shapes
        ]

    def specs(self):
        """Returns symbolic inputs."""
        return [
            keras.Input(x.shape[1:], dtype=x.dtype.name) for x in self.inputs()
        ]

    def make(self, module, dtype="float32", weights=None, **arguments):
        """Returns the layer of `keras.layers` or of ours, built."""
        layer = class_of(module, self.name)(
            **self.arguments, **arguments, dtype=dtype
        )
        self.call(layer, self.inputs())
        if weights is None:
            weights = _weights(layer)
        layer.set_weights(weights)
        return layer

    def call(self, layer, inputs, **arguments):
        """Returns the outputs of the layer."""
        inputs = [list(inputs)] if self.listed else inputs
        return layer(*inputs, **{**self.call_arguments, **arguments})


def class_of(module, name):
    """Returns a class of `keras.layers` or of ours."""
    if module is keras.layers and name == "GroupedQueryAttention":
        name = "GroupQueryAttention"
    return getattr(module, name)


def _weights(layer):
    """Returns weights, all positive and none the default."""
    generator = np.random.default_rng(1)
    return [
        generator.uniform(0.1, 0.5, w.shape).astype(w.dtype)
        if keras.backend.is_float_dtype(w.dtype)
        else np.asarray(keras.ops.convert_to_numpy(w))
        for w in layer.weights
    ]


def arrays(outputs):
    """Returns each output as an array of float64."""
    return [
        np.asarray(keras.ops.convert_to_numpy(x)).astype("float64")
        for x in keras.tree.flatten(outputs)
    ]


def dtypes(outputs):
    """Returns the names of the dtypes of the outputs."""
    return {
        keras.backend.standardize_dtype(x.dtype)
        for x in keras.tree.flatten(outputs)
    }


def parameters(wanted=None):
    """Returns all cases for `parametrize`; some are slow.

    Args:
        wanted: Names of cases that are not. Defaults to one of each class.
    """
    return [
        pytest.param(
            case,
            id=str(case),
            marks=(
                []
                if (str(case) in wanted if wanted else not case.label)
                else [pytest.mark.slow]
            ),
        )
        for case in CASES
    ]


IMAGES = ((2, 4, 4, 2),)
SEQUENCES = ((2, 3, 8), (2, 5, 8))
MHA = {"num_heads": 2, "key_dim": 3}
GQA = {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2}
CAUSAL = {"use_causal_mask": True}
SCORES = {"return_attention_scores": True}

CASES = [
    Case("ActivityRegularization", ((2, 8),), {"l1": 0.1, "l2": 0.2}),
    Case("AdditiveAttention", SEQUENCES, listed=True, scale=300.0),
    Case("Attention", SEQUENCES, listed=True, scale=300.0),
    Case(
        "Attention",
        SEQUENCES,
        {"score_mode": "concat", "use_scale": True},
        CAUSAL,
        listed=True,
        label="concat_causal",
    ),
    Case("AveragePooling1D", ((1, 3000, 1),), {"pool_size": 3000}),
    Case("AveragePooling2D", ((1, 64, 64, 1),), {"pool_size": 64}),
    Case(
        "AveragePooling2D",
        IMAGES,
        {"pool_size": 3, "padding": "same"},
        label="same",
    ),
    Case("AveragePooling3D", ((1, 14, 14, 14, 1),), {"pool_size": 14}),
    Case("BatchNormalization", ((4, 3),)),
    Case(
        "BatchNormalization",
        ((4, 3),),
        {"momentum": 0.5},
        {"training": True},
        scale=1e5,
        label="training",
    ),
    Case("Dot", ((2, 3, 8), (2, 5, 8)), {"axes": 2}, listed=True, scale=50.0),
    Case(
        "Dot",
        ((2, 8), (2, 8)),
        {"axes": 1, "normalize": True},
        listed=True,
        scale=1e5,
        label="normalize",
    ),
    Case("Embedding", ((2, 3),), {"input_dim": 4000, "output_dim": 4}),
    Case("GlobalAveragePooling1D", ((2, 50, 3),), scale=1e4),
    Case("GlobalAveragePooling2D", ((2, 8, 8, 3),), scale=1e4),
    Case(
        "GlobalAveragePooling3D",
        ((2, 4, 4, 4, 3),),
        {"keepdims": True},
        scale=1e4,
    ),
    Case("GroupNormalization", IMAGES, {"groups": 2}, scale=1e5),
    Case("GroupNormalization", IMAGES, {"groups": -1}, label="instance"),
    Case("GroupedQueryAttention", SEQUENCES, GQA),
    Case("GroupedQueryAttention", SEQUENCES, GQA, CAUSAL, label="causal"),
    Case("GroupedQueryAttention", SEQUENCES, GQA, SCORES, label="scores"),
    Case("LayerNormalization", ((2, 8),), scale=1e5),
    Case("LayerNormalization", ((2, 3, 4),), {"axis": [1, 2]}, label="axes"),
    Case("MultiHeadAttention", SEQUENCES, MHA),
    Case("MultiHeadAttention", SEQUENCES, MHA, CAUSAL, label="causal"),
    Case("MultiHeadAttention", SEQUENCES, MHA, SCORES, label="scores"),
    Case(
        "MultiHeadAttention",
        SEQUENCES,
        {**MHA, "dropout": 0.5, "seed": 1},
        label="dropout",
    ),
    Case(
        "MultiHeadAttention",
        ((2, 3, 4, 6), (2, 3, 4, 6)),
        {**MHA, "attention_axes": 2},
        label="axes",
    ),
    Case(
        "Normalization",
        ((3, 2),),
        {"mean": [1e5, 2e5], "variance": [1e8, 4e10]},
        scale=1e5,
    ),
    Case(
        "Normalization",
        ((3, 2),),
        {"axis": None, "mean": 1.0, "variance": 4.0, "invert": True},
        label="invert",
    ),
    Case("RMSNormalization", ((2, 8),), scale=1e5),
    Case("Rescaling", ((3, 2),), {"scale": 1e-5, "offset": 0.5}, scale=1e5),
    Case("Softmax", ((2, 5),), scale=1e5),
    Case("Softmax", ((2, 3, 4),), {"axis": (1, 2)}, label="axes"),
    Case("UnitNormalization", ((2, 8),), scale=1e5),
    Case("UnitNormalization", ((2, 3, 4),), {"axis": [1, 2]}, label="axes"),
    Case("UpSampling2D", IMAGES, {"interpolation": "bilinear"}, scale=100.0),
    Case("UpSampling2D", IMAGES, {"size": (2, 3)}, label="nearest"),
]
