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
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.local_variables import LocalVariables
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.traced_apart import TracedApart
from tf_mixprec.optimizers.verdict import Verdict

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
        unscale: Returns scaled gradients, given with their variables and a
            factor or `None`, unscaled; `None` if they are not scaled.
        clipping: How to clip what is unscaled, gradient by gradient.
        state: Variables of the loss scale, which every step may write to.
        judge: Returns `found_inf` of scaled gradients and their variables.
        note: Notes what callbacks ask for, given the gradients, their
            variables and the verdict.
        move: Writes the next state of the loss scale, given the verdict.
        options: How to trace it.
    """

    inner_optimizer: Any
    loss_scale: Variable
    unscale: Callable[..., Any] | None
    clipping: Clipping
    state: Sequence[Variable]
    judge: Callable[[Sequence[Gradient], Sequence[Variable]], Tensor]
    note: Callable[[Sequence[Gradient], Sequence[Variable], Verdict], None]
    move: Callable[[Verdict], None]
    options: StepOptions

    def update(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
    ) -> None:
        """Lets the inner optimizer update the variables."""
        if self.unscale is not None:
            gradients = self.unscale(gradients, variables, verdict.factor)
        gradients = self.clipping.each(gradients, variables)
        if verdict.norm is None:
            self.inner_optimizer.apply(gradients, list(variables))
            return
        with keras_internals.clipping_by(self.inner_optimizer, verdict.norm):
            self.inner_optimizer.apply(gradients, list(variables))

    def in_a_branch(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
    ) -> None:
        """Updates in a branch of the graph, and moves the loss scale."""
        if self.options.skip_nonfinite:
            # `tf.cond`, since `keras.ops.cond` wraps what is raised inside.
            tf.cond(
                verdict.is_skipped,
                lambda: None,
                lambda: self.update(gradients, variables, verdict),
            )
        else:
            self.update(gradients, variables, verdict)
        self.move(verdict)

    def masked(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
    ) -> None:
        """Updates variables whose writes are masked, and moves the scale."""
        self.update(gradients, variables, verdict)
        self.move(verdict)


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
    verdict: Verdict | None,
    traces: Traces,
) -> None:
    """Takes a step on the replica that calls.

    Args:
        step: What to do.
        gradients: Gradients summed over replicas.
        variables: Their variables.
        verdict: What is known of them, the same on every replica; `None` for
            gradients that are scaled, and still to be judged.
        traces: Steps traced earlier.
    """
    arguments = (step, gradients, variables)
    compiles = _compiles(step, gradients)
    clips = compiles and _clips_by_known_norm(step, gradients)
    if verdict is None:
        verdict = _judged(*arguments, with_norm=clips)
    step.note(gradients, variables, verdict)
    if not clips:
        verdict = verdict._replace(norm=None)
    if compiles or distribution.is_distributed():
        _take_apart(*arguments, verdict, traces, compiles=compiles)
    else:
        step.in_a_branch(gradients, variables, verdict)


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


def _clips_by_known_norm(step: Step, gradients: Sequence[Gradient]) -> bool:
    """Returns whether the inner optimizer is told the norm it clips by."""
    return bool(
        keras_internals.global_clipnorm(step.inner_optimizer)
        and not gradient_lists.sees_gpu()
        and gradient_lists.are_plain(gradients)
    )


def _judged(
    step: Step,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    *,
    with_norm: bool,
) -> Verdict:
    """Returns `found_inf`, and the norm to clip by where it is asked for."""
    if with_norm:
        found_inf, norm = gradient_lists.found_inf_and_norm(
            gradients, variables, step.loss_scale, norm_counts=True
        )
        return Verdict(found_inf, norm=norm)
    return Verdict(step.judge(gradients, variables))


def _take_apart(
    step: Step,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    verdict: Verdict,
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
        verdict.names,
        step.unscale is None,
        step.clipping,
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
            verdict,
            local,
            masks=compiles and step.options.skip_nonfinite,
            jit_compile=compiles,
        ),
    )
    traced(gradients, verdict)
