"""The step of one replica on TensorFlow: masked and compiled, or in a branch.

Where it is traced apart it knows neither the replica that calls it nor a
strategy: the variables are this replica's components, and the inner optimizer
finds one device. So it makes no merge calls, does not sum gradients a second
time, and can be compiled.
"""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers.local_variables import LocalVariables
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.traced_apart import TracedApart

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


# Optimizers of which the compiled update has the same bits: made of products,
# sums, quotients and square roots by element. Others have powers, reciprocal
# roots or norms, which XLA computes in another way or order.
_EXACT = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Lion,
    keras.optimizers.Nadam,
)


class Step(NamedTuple):
    """What there is to do in a step.

    Args:
        inner_optimizer: The optimizer that makes the update.
        loss_scale: The variable with the loss scale.
        unscale: Returns scaled gradients, given with their variables, unscaled;
            `None` if they are not scaled.
        state: Variables of the loss scale, which every step may write to.
        judge: Returns `found_inf` of scaled gradients and their variables.
        move: Writes the next state of the loss scale, given `found_inf`.
        options: How to trace it.
    """

    inner_optimizer: Any
    loss_scale: Variable
    unscale: Callable[[Sequence[Gradient], Sequence[Variable]], Any] | None
    state: Sequence[Variable]
    judge: Callable[[Sequence[Gradient], Sequence[Variable]], Tensor]
    move: Callable[[Tensor], None]
    options: StepOptions

    def update(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        """Lets the inner optimizer update the variables."""
        if self.unscale is not None:
            gradients = self.unscale(gradients, variables)
        self.inner_optimizer.apply(list(gradients), list(variables))

    def in_a_branch(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        found_inf: Tensor,
        norm: None = None,
    ) -> None:
        """Updates in a branch of the graph, and moves the loss scale."""
        if self.options.skip_nonfinite:
            # `tf.cond`, since `keras.ops.cond` wraps what is raised inside.
            tf.cond(
                found_inf,
                lambda: None,
                lambda: self.update(gradients, variables),
            )
        else:
            self.update(gradients, variables)
        self.move(found_inf)

    def masked(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        found_inf: Tensor,
        norm: Tensor | None,
    ) -> None:
        """Updates variables whose writes are masked, and moves the scale."""
        if norm is None:
            self.update(gradients, variables)
        else:
            with keras_internals.clipping_by(self.inner_optimizer, norm):
                self.update(gradients, variables)
        self.move(found_inf)


class Traces:
    """Steps that were traced apart, kept for eager code.

    In a graph each call is traced again, as everything in it is.
    """

    def __init__(self) -> None:
        self._traces: dict[Hashable, TracedApart] = {}

    def get(
        self, key: Hashable, make: Callable[[], TracedApart]
    ) -> TracedApart:
        """Returns the trace for a key, made if need be."""
        if not tf.executing_eagerly():
            return make()
        if key not in self._traces:
            self._traces[key] = make()
        return self._traces[key]


def take(
    step: Step,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    found_inf: Tensor | None,
    traces: Traces,
) -> None:
    """Takes a step on the replica that calls.

    Args:
        step: What to do.
        gradients: Gradients summed over replicas.
        variables: Their variables.
        found_inf: Scalar bool tensor, the same on every replica; `None` for
            gradients that are scaled, and still to be judged.
        traces: Steps traced earlier.
    """
    arguments = (step, gradients, variables)
    compiles = _compiles(step, gradients)
    judged = _judged(*arguments, found_inf, with_norm=compiles)
    if compiles or distribution.is_distributed():
        _take_apart(*arguments, *judged, traces, compiles=compiles)
    else:
        step.in_a_branch(gradients, variables, judged[0])


def _compiles(step: Step, gradients: Sequence[Gradient]) -> bool:
    """Returns whether to mask the writes and let XLA compile the update."""
    if step.options.jit_compile != "auto":
        return bool(step.options.jit_compile)
    return (
        not tf.executing_eagerly()
        and type(keras_internals.updating(step.inner_optimizer)) in _EXACT
        and not step.inner_optimizer.clipnorm
        and not any(gradient_lists.is_sparse(g) for g in gradients)
        and not keras_internals.has_branches(step.inner_optimizer)
        and gradient_lists.elements_per_tensor(gradients)
        >= gradient_lists.LARGE_ELEMENTS
    )


def _judged(
    step: Step,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    found_inf: Tensor | None,
    *,
    with_norm: bool,
) -> tuple[Tensor, Tensor | None]:
    """Returns `found_inf`, and the norm to clip by where that is at hand."""
    if found_inf is not None:
        return found_inf, None
    if (
        with_norm
        and keras_internals.global_clipnorm(step.inner_optimizer)
        and not gradient_lists.sees_gpu()
        and gradient_lists.are_plain(gradients)
    ):
        return gradient_lists.found_inf_and_norm(
            gradients, variables, step.loss_scale
        )
    return step.judge(gradients, variables), None


def _take_apart(
    step: Step,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    found_inf: Tensor,
    norm: Tensor | None,
    traces: Traces,
    *,
    compiles: bool,
) -> None:
    """Takes a step in a function that is traced apart."""
    local = LocalVariables(
        step.inner_optimizer,
        variables,
        step.state,
        distribution.component_on_this_replica,
    )
    key = (
        compiles,
        norm is None,
        step.unscale is None,
        local.device,
        tuple(map(id, variables)),
        gradient_lists.signature(gradients),
        keras_internals.settings(step.inner_optimizer),
    )
    traced = traces.get(
        key,
        lambda: TracedApart(
            step.masked if compiles else step.in_a_branch,
            gradients,
            variables,
            local,
            has_norm=norm is not None,
            masks=compiles and step.options.skip_nonfinite,
            jit_compile=compiles,
        ),
    )
    traced(gradients, found_inf, norm)
