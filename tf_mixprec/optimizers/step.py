"""One step: on variables on TensorFlow, on values on the other backends."""

import contextlib
import functools
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers import replica_step
from tf_mixprec.optimizers.clipping import NONE
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.ledger import Ledger
from tf_mixprec.optimizers.noted_step import NotedStep
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.tracing import as_written
from tf_mixprec.optimizers.verdict import Verdict


class SkippingStep(NotedStep):
    """A wrapper that updates, or skips the step, and moves the loss scale.

    ```text
    gradients of this replica
      -> summed over replicas           once, in `all_reduce_dtype`
      -> found_inf                      of the sums, so the same on each replica
      -> divided by the loss scale      in at least float32
      -> inner optimizer                clips, updates; masked or in a branch
      -> next state of the loss scale
    ```

    Args:
        inner_optimizer: The optimizer that makes the update.
        rule: How the loss scale starts and moves.
        options: What a step is traced with.
        name: String, or `None` for a unique name.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        rule: LossScaleRule,
        options: StepOptions,
        name: str | None,
    ):
        distribution.check_strategy()
        super().__init__(inner_optimizer, rule, options, name)
        self._ledger = Ledger()
        self._traces = replica_step.Traces()
        # Whether losses are scaled by scales that it does not know.
        self.has_other_scales = False

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the inner optimizer's variables; does nothing a second time."""
        if self.built:
            return
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        self.built = True

    @as_written
    def apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Variable] | None = None,
    ) -> None:
        """Unscales the gradients of the scaled loss and makes a step.

        Args:
            grads: Gradients of the scaled loss: dense tensors,
                `tf.IndexedSlices` or `None`. On several replicas each has its
                own, and they are summed.
            trainable_variables: The variables they belong to. Defaults to
                those that the optimizer was built with.

        Raises:
            ValueError: If gradients and variables do not match, every gradient
                is `None`, or a step cannot be taken under the strategy.
            RuntimeError: If the gradients were made from those that `unscale`
                returned.
        """
        self._apply(list(grads), trainable_variables)

    @as_written
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Gradient, Variable]]
    ) -> Tensor:
        """Calls `apply` and returns `iterations`."""
        pairs = list(grads_and_vars)
        self._apply([g for g, _ in pairs], [v for _, v in pairs])
        return self.iterations

    def _apply(
        self,
        gradients: list[Gradient],
        variables: Sequence[Variable] | None,
    ) -> None:
        if not gradients:
            return
        variables = self._known_variables(gradients, variables)
        found_inf = self._ledger.found_inf_if_unscaled(gradients)
        if found_inf is not None:
            found_inf = self._also_found(found_inf, gradients)
            self._step(gradients, variables, Verdict(found_inf), scaled=False)
            return
        self._ledger.warn_if_loss_was_not_scaled(self.rule)
        gradients = distribution.summed(gradients, self.all_reduce_dtype)
        self._step(gradients, variables)

    @as_written
    def apply_unscaled(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Makes a step with gradients that are not scaled (any more).

        On several replicas the gradients of `unscale` are summed already and
        must stay the same on each; gradients from elsewhere are summed here.

        Args:
            gradients: Gradients of the loss itself.
            variables: The variables they belong to. Defaults to those that
                the optimizer was built with.
            found_inf: Scalar bool tensor: what `unscale` returned, since a
                clipped inf is finite. The gradients are checked again in any
                case, since a clipped number can be nan. Defaults to that check
                alone.

        Raises:
            ValueError: If gradients and variables do not match, or every
                gradient is `None`.
        """
        gradients = list(gradients)
        if not gradients:
            return
        variables = self._known_variables(gradients, variables)
        if not self._ledger.take_unscaled():
            gradients = distribution.summed(gradients, self.all_reduce_dtype)
        found_inf = self._also_found(found_inf, gradients)
        self._step(gradients, variables, Verdict(found_inf), scaled=False)

    @as_written
    def clip_and_apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        clipping: Clipping = NONE,
        *,
        count: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Makes a step with clipped gradients, on TensorFlow.

        They are summed over replicas first, and multiplied once: with the
        reciprocal of the loss scale, of `count`, and with the clipping factor.

        Args:
            gradients: Gradients of the scaled loss on this replica, or sums of
                them over micro-batches.
            variables: The variables they belong to.
            clipping: How they are clipped once unscaled.
            count: Scalar float32 tensor, the same on every replica: how many
                micro-batches they are summed over, or what else is to divide
                them. The step is skipped if it is 0. Defaults to 1.
            found_inf: Scalar bool tensor, the same on every replica: whether
                micro-batches were left out for being inf or nan, so that the
                loss scale backs off though the step is made.

        Returns:
            Whether the step was skipped, a scalar bool tensor; and the global
            norm before clipping, a scalar float32 tensor.

        Raises:
            ValueError: If gradients and variables do not match, every gradient
                is `None`, or a step cannot be taken under the strategy.
        """
        variables = self._known_variables(gradients, variables)
        self._ledger.warn_if_loss_was_not_scaled(self.rule)
        gradients = distribution.summed(gradients, self.all_reduce_dtype)
        divisor = ops.convert_to_tensor(self.loss_scale)
        if count is not None:
            divisor *= ops.where(count > 0, count, 1.0)
        inner_clips = keras_internals.global_clipnorm(self.inner_optimizer)
        found_now, norm = gradient_lists.found_inf_and_norm(
            gradients,
            variables,
            divisor,
            norm_counts=bool(clipping.global_norm or inner_clips),
        )
        if not self._scale_stays_above_one:
            found_now |= self._found_inf(gradients, variables)
        verdict = Verdict(found_now)
        if count is not None:
            verdict = verdict._replace(
                skips=found_now | (count == 0), factor=1.0 / divisor
            )
            norm = ops.where(count == 0, float("nan"), norm)
        if found_inf is not None:
            verdict = verdict._replace(
                found_inf=found_now | found_inf, skips=verdict.is_skipped
            )
        if clipping.global_norm is not None:
            factor = clipping.factor(norm) / divisor
            verdict = verdict._replace(factor=factor)
        elif inner_clips and clipping == NONE:
            verdict = verdict._replace(norm=norm)
        self._step(
            gradients,
            variables,
            verdict,
            clipping=clipping,
            divisor=divisor,
            norm=norm,
        )
        return verdict.is_skipped, norm

    def forbidding_scale_loss(
        self, why_not: str
    ) -> contextlib.AbstractContextManager[None]:
        """Makes a call of `scale_loss` in a block a `RuntimeError`.

        Args:
            why_not: The rule, the reason and the remedy.
        """
        return self._ledger.forbidding(why_not)

    @as_written
    def is_bad_micro_batch(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Tensor:
        """Returns whether a gradient is inf or nan, on any replica.

        Args:
            gradients: Gradients of the scaled loss of one micro-batch, on this
                replica.
            variables: The variables they belong to.

        Returns:
            Scalar bool tensor, the same on every replica.
        """
        counts = self._nonfinite_counts
        if counts is None:
            return distribution.on_any_replica(
                self._found_inf(gradients, variables)
            )
        flags = distribution.on_any_replica(
            self._flags(counts, gradients, variables)
        )
        counts.add(flags)
        return ops.any(flags)

    def _known_variables(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None,
    ) -> list[Variable]:
        distribution.check_strategy()
        distribution.check_replica_context()
        return super()._known_variables(gradients, variables)

    def _found_inf(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Tensor:
        """Returns whether scaled gradients are inf or nan, or will be."""
        if self._scale_stays_above_one:
            return gradient_lists.found_inf(gradients)
        # A division by less than 1 can overflow.
        return gradient_lists.found_inf(
            [
                *gradients,
                *self._unscaled(gradients, variables),
            ]
        )

    def _also_found(
        self, found_inf: Tensor | None, gradients: Sequence[Gradient]
    ) -> Tensor:
        """Returns whether inf or nan was found earlier or is there now."""
        found_now = gradient_lists.found_inf(gradients)
        if found_inf is not None:
            found_now = ops.logical_or(ops.cast(found_inf, "bool"), found_now)
        # The loop may have done other things on other replicas.
        return distribution.on_any_replica(found_now)

    def _step(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict | None = None,
        *,
        scaled: bool = True,
        clipping: Clipping = NONE,
        divisor: Tensor | None = None,
        norm: Tensor | None = None,
    ) -> None:
        """Updates unless the step is skipped, and moves the loss scale.

        Args:
            gradients: Gradients summed over replicas.
            variables: Their variables.
            verdict: What is known of them; `None` if they are not yet judged.
            scaled: Whether they are still scaled.
            clipping: How they are clipped.
            divisor: Scalar float32 tensor: what is to divide them. Defaults to
                the loss scale if they are scaled.
            norm: Scalar float32 tensor: the global norm once they are divided;
                `None` if it is not known.
        """
        self._check_inner_scales_nothing()

        if keras.backend.backend() != "tensorflow":
            if verdict is None:
                verdict = Verdict(self._found_inf(gradients, variables))
            if scaled:
                gradients = self._unscaled(gradients, variables)
            self._step_on_values(gradients, variables, verdict.found_inf)
            return
        moves, before = self.notes.moves, None
        if moves is not None:
            before = ops.copy(self.loss_scale)  # read here and not later
        replica_step.take(
            replica_step.Step(
                inner_optimizer=self.inner_optimizer,
                loss_scale=self.loss_scale,
                unscale=self._unscaled if scaled else None,
                clipping=clipping,
                state=[*self._state(), *self._rule_variables()],
                judge=self._found_inf,
                note=functools.partial(
                    self._note,
                    scaled=scaled,
                    clipping=clipping,
                    divisor=divisor,
                    norm=norm,
                ),
                move=self._move,
                options=self._options,
            ),
            gradients,
            variables,
            verdict,
            self._traces,
        )
        if moves is not None:
            moves.note(before, ops.convert_to_tensor(self.loss_scale))

    def _move(self, verdict: Verdict) -> None:
        """Writes the next state of the loss scale."""
        state = self._state()
        new_state = self._next_state(state, verdict.found_inf)
        if verdict.skips is not None and self._options.skip_nonfinite:
            new_state = new_state._replace(
                skipped_steps=state.skipped_steps
                + ops.cast(verdict.skips, state.skipped_steps.dtype),
                consecutive_skipped_steps=ops.where(
                    verdict.skips, state.consecutive_skipped_steps + 1, 0
                ),
            )
        self._assign_state(new_state)

    def _check_inner_scales_nothing(self) -> None:
        factor = self.inner_optimizer.loss_scale_factor
        if factor is not None:
            raise ValueError(
                "`loss_scale_factor` must not be set on the inner optimizer, "
                "because it would divide the gradients once more; set "
                "`optimizer.loss_scale`. Received: "
                f"loss_scale_factor={factor!r}"
            )
