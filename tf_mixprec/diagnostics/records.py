"""What is known of a step, as plain data."""

import dataclasses

from tf_mixprec.diagnostics.tensor_statistics import TensorStatistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """A tensor that a layer was given or returned.

    Args:
        order: How many tensors of the step were looked at before it. Gradients
            come in the opposite order.
        dtype: Its dtype.
        shape: Its shape; `None` for what was not known when it was traced.
        values: Statistics of its values.
        gradient: Statistics of the gradient of the scaled loss; `None` where
            the loss does not depend on it.
    """

    order: int
    dtype: str
    shape: tuple[int | None, ...]
    values: TensorStatistics
    gradient: TensorStatistics | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One call of a layer.

    Args:
        path: The names of the models around it and its own, joined by `/`;
            empty for the model itself, `"(loss)"` for what the loss is given.
        layer_class: The name of its class.
        compute_dtype: The dtype it computes in; empty where it has none.
        occurrence: Which call of this layer, from 0.
        inside: Paths of the layers around it, the outermost first.
        inputs: The float tensors it was given.
        outputs: The float tensors it returned.
    """

    path: str
    layer_class: str
    compute_dtype: str
    occurrence: int
    inside: tuple[str, ...]
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableRecord:
    """A variable of a layer.

    Args:
        path: Its path.
        layer: The path of its layer.
        name: Its name in the layer.
        dtype: Its dtype.
        trainable: Whether it has a gradient.
        values: Statistics of its values.
        gradient: Statistics of the gradient of the scaled loss; `None` where
            there is none.
    """

    path: str
    layer: str
    name: str
    dtype: str
    trainable: bool
    values: TensorStatistics
    gradient: TensorStatistics | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A step.

    Args:
        calls: In the order in which they returned: a layer is behind those
            that it is made of.
        variables: The float variables of the model.
        loss: The loss.
        loss_scale: What it was multiplied with.
        scaled_loss: The product, in float32.
    """

    calls: tuple[CallRecord, ...]
    variables: tuple[VariableRecord, ...]
    loss: float
    loss_scale: float
    scaled_loss: float

    @property
    def found_inf(self) -> bool:
        """Whether the gradient of a variable has inf or nan."""
        return any(
            each.gradient is not None and each.gradient.nonfinite > 0
            for each in self.variables
        )
