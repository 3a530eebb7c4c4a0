"""Which ops autocast runs in 16 bits, as data.

The lists are what four public ones agree on, in TensorFlow's names:

- PyTorch's [autocast op reference](https://pytorch.org/docs/stable/amp.html),
- the allow, infer, deny and clear lists of TensorFlow's
  `auto_mixed_precision` graph rewrite,
- the white and black lists of Paddle's `paddle.amp.auto_cast`,
- those of MindSpore's `mindspore.amp.auto_mixed_precision`.

Where they differ (TensorFlow lets a softmax, a logarithm and, on CPUs, sums
follow their inputs) the three others decide.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

import keras

from tf_mixprec.autocast import tensorflow_internals

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

__all__ = ["DEFAULT", "OpLists"]

LOW = "low"
FULL = "full"
WIDEST = "widest"
NEUTRAL = "neutral"
CATEGORIES = (LOW, FULL, WIDEST, NEUTRAL)


@dataclasses.dataclass(frozen=True)
class OpLists:
    """What autocast does with each op.

    - *low*: runs in 16 bits; float32 inputs are cast to them.
    - *full*: runs in float32; 16-bit inputs are cast back.
    - *widest*: computes in the widest dtype of its inputs. Parameters
      (variables, constants) among them follow the others.
    - *neutral*: moves, selects or compares values without changing any, and
      follows its inputs.

    An op in no list stays as it is, and is reported.

    Args:
        categories: Dict from names of ops to `"low"`, `"full"`, `"widest"` or
            `"neutral"`.

    Raises:
        ValueError: If there is no such list; `mp.autocast` raises one for an op
            that TensorFlow does not have.

    Example:

    >>> import tf_mixprec as mp
    >>> lists = mp.op_lists.DEFAULT.low("Softmax").full("Tanh", "Sigmoid")
    >>> lists.category("Tanh"), mp.op_lists.DEFAULT.category("Tanh")
    ('full', 'widest')
    """

    categories: dict[str, str]

    def __post_init__(self) -> None:
        for category in set(self.categories.values()):
            _check_category(category)
        object.__setattr__(self, "categories", dict(self.categories))

    def __repr__(self) -> str:
        counts = [f"{len(self.names(each))} {each}" for each in CATEGORIES]
        return f"OpLists({', '.join(counts)})"

    def __hash__(self) -> int:
        return hash(frozenset(self.categories.items()))

    def category(self, op_type: str) -> str | None:
        """Returns the list that an op is in; `None` if in none.

        Args:
            op_type: Name of the op, such as `"MatMul"`.
        """
        return self.categories.get(op_type)

    def names(self, category: str) -> tuple[str, ...]:
        """Returns the ops in a list, sorted.

        Args:
            category: `"low"`, `"full"`, `"widest"` or `"neutral"`.

        Raises:
            ValueError: If there is no such list.
        """
        _check_category(category)
        return tuple(
            sorted(k for k, v in self.categories.items() if v == category)
        )

    def low(self, *ops: str) -> OpLists:
        """Returns lists in which some ops run in 16 bits.

        Args:
            *ops: Names of ops, such as `"MatMul"`.

        Raises:
            ValueError: If TensorFlow has no such op.
        """
        return self._with(LOW, ops)

    def full(self, *ops: str) -> OpLists:
        """Returns lists in which some ops run in float32.

        Args:
            *ops: Names of ops, such as `"Tanh"`.

        Raises:
            ValueError: If TensorFlow has no such op.
        """
        return self._with(FULL, ops)

    def widest(self, *ops: str) -> OpLists:
        """Returns lists in which some ops run in their widest input's dtype.

        Args:
            *ops: Names of ops, such as `"Cross"`.

        Raises:
            ValueError: If TensorFlow has no such op.
        """
        return self._with(WIDEST, ops)

    def neutral(self, *ops: str) -> OpLists:
        """Returns lists in which some ops only move values.

        Args:
            *ops: Names of ops, such as `"MyShuffle"`.

        Raises:
            ValueError: If TensorFlow has no such op.
        """
        return self._with(NEUTRAL, ops)

    def without(self, *ops: str) -> OpLists:
        """Returns lists without some ops, which then stay as they are.

        Args:
            *ops: Names of ops.

        Raises:
            ValueError: If TensorFlow has no such op.
        """
        _check(ops)
        return OpLists(
            {k: v for k, v in self.categories.items() if k not in ops}
        )

    def _with(self, category: str, ops: Any) -> OpLists:
        _check(ops)
        return OpLists({**self.categories, **dict.fromkeys(ops, category)})


def check_ops(lists: OpLists) -> None:
    """Rejects lists with names that are none of an op.

    Args:
        lists: The lists.
    """
    # Those of `DEFAULT` may be of another version of TensorFlow.
    _check(
        [each for each in lists.categories if DEFAULT.category(each) is None]
    )


def _check_category(category: Any) -> None:
    """Rejects what is not the name of a list."""
    if category not in CATEGORIES:
        raise ValueError(
            f"A category must be one of {CATEGORIES}, the lists that there "
            f"are. Received: {category!r}"
        )


def _check(ops: Any) -> None:
    """Rejects what is not the name of an op."""
    for op in ops:
        if not isinstance(op, str):
            raise TypeError(
                "An op must be given by its name, a string such as "
                f'"MatMul". Received: {op!r}'
            )
        if not tensorflow_internals.op_exists(op):
            known = [name for name in dir(tf.raw_ops) if name[0].isupper()]
            close = difflib.get_close_matches(op, known, 3, 0.5)
            near = f" Near it: {', '.join(close)}." if close else ""
            raise ValueError(
                "An op must be one that TensorFlow has (`dir(tf.raw_ops)`) or "
                "that `tf.load_op_library` loaded, because any other would "
                f"never be met.{near} Received: {op!r}"
            )


_LOW = """
MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv Conv2D
Conv2DBackpropInput Conv2DBackpropFilter
Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2
DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput
DepthwiseConv2dNativeBackpropFilter
BlockLSTM BlockLSTMV2 BlockLSTMGrad BlockLSTMGradV2 LSTMBlockCell
LSTMBlockCellGrad GRUBlockCell GRUBlockCellGrad
CudnnRNN CudnnRNNV2 CudnnRNNV3 CudnnRNNBackprop CudnnRNNBackpropV2
CudnnRNNBackpropV3
"""

_FULL = """
Exp Expm1 Log Log1p Pow Reciprocal ReciprocalGrad Inv InvGrad Rsqrt RsqrtGrad
Square SquaredDifference Softplus SoftplusGrad Softmax LogSoftmax
Sinh Cosh Tan Acos Asin Acosh Asinh Atanh Erfinv Ndtri Lgamma Digamma Igamma
Igammac IgammaGradA Polygamma Zeta Betainc BesselI0e BesselI1e Xlogy Xlog1py
Xdivy
SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits L2Loss
CTCLoss CTCLossV2
Sum Mean Prod EuclideanNorm Cumsum Cumprod CumulativeLogsumexp BiasAddGrad
AvgPool AvgPoolGrad AvgPool3D AvgPool3DGrad
ScatterNd TensorScatterAdd TensorScatterSub Where
SegmentSum SegmentSumV2 SegmentMean SegmentProd SegmentProdV2
UnsortedSegmentSum UnsortedSegmentProd SparseSegmentSum SparseSegmentMean
SparseSegmentSqrtN SparseTensorDenseMatMul
LRN LRNGrad FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars
ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor ScaleAndTranslate
CropAndResize
Cholesky MatrixDeterminant LogMatrixDeterminant MatrixInverse MatrixSolve
MatrixSolveLs MatrixTriangularSolve MatrixExponential MatrixLogarithm
MatrixSquareRoot Qr Svd SelfAdjointEigV2 Eig Lu Cross
RFFT RFFT2D RFFT3D Complex
AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceScatterAdd
ResourceScatterSub ResourceScatterUpdate ResourceScatterNdAdd
ResourceScatterNdUpdate
TensorListFromTensor TensorListPushBack TensorListSetItem TensorListScatter
TensorListScatterV2 TensorListScatterIntoExistingList
ScalarSummary HistogramSummary WriteScalarSummary WriteHistogramSummary
WriteSummary PrintV2 StringFormat AsString Assert
"""

_WIDEST = """
Add AddV2 AddN Sub Mul MulNoNan Div RealDiv DivNoNan FloorDiv TruncateDiv Mod
FloorMod TruncateMod Maximum Minimum Atan2 NextAfter
BiasAdd BiasAddV1 ClipByValue
Tanh TanhGrad Sigmoid SigmoidGrad Elu EluGrad Selu SeluGrad LeakyRelu
LeakyReluGrad Softsign SoftsignGrad Erf Erfc Sqrt SqrtGrad Sin Cos Atan
FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad
FusedBatchNormGradV2 FusedBatchNormGradV3
Concat ConcatV2 Pack ParallelConcat DynamicStitch ParallelDynamicStitch
Select SelectV2 TensorScatterMax TensorScatterMin
TensorScatterUpdate TensorStridedSliceUpdate
"""

_NEUTRAL = """
Identity IdentityN StopGradient PreventGradient Snapshot EnsureShape Reshape
Transpose ConjugateTranspose InvertPermutation ExpandDims Squeeze
Shape ShapeN Size Rank
Gather GatherV2 GatherNd Slice StridedSlice StridedSliceGrad Split SplitV
Unpack Reverse ReverseV2 ReverseSequence Roll Tile BroadcastTo Pad PadV2
MirrorPad MirrorPadGrad SpaceToBatch SpaceToBatchND BatchToSpace
BatchToSpaceND SpaceToDepth DepthToSpace ExtractImagePatches
MatrixBandPart MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPart
MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2
MatrixSetDiagV3 Diag DiagPart
Relu ReluGrad Relu6 Relu6Grad Abs Neg Sign Floor Ceil Round Rint
MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradV2 MaxPoolGradGrad MaxPool3D
MaxPool3DGrad MaxPoolWithArgmax
Max Min ArgMax ArgMin TopKV2 SegmentMax SegmentMin UnsortedSegmentMax
UnsortedSegmentMin InTopK InTopKV2
Equal NotEqual ApproximateEqual Less LessEqual Greater GreaterEqual IsFinite
IsInf IsNan CheckNumerics CheckNumericsV2
ZerosLike OnesLike Fill Cast OneHot Unique UniqueV2 DynamicPartition
"""

DEFAULT = OpLists(
    {
        name: category
        for category, names in (
            (LOW, _LOW),
            (FULL, _FULL),
            (WIDEST, _WIDEST),
            (NEUTRAL, _NEUTRAL),
        )
        for name in names.split()
    }
)
