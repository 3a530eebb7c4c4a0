"""One step: on variables on TensorFlow, on values on the other backends."""

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
from tf_mixprec.optimizers import replica_step
from tf_mixprec.optimizers.ledger import Ledger
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.tracing import as_written
from tf_mixprec.optimizers.values_step import ValuesStep


class SkippingStep(ValuesStep):
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
            self._step(gradients, variables, found_inf)
            return
        self._ledger.warn_if_loss_was_not_scaled(self.rule)
        gradients = distribution.summed(gradients, self.all_reduce_dtype)
        self._step(gradients, variables, None)

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
        self._step(gradients, variables, found_inf)

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

    def _unscaled(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        return gradient_lists.unscaled(
            gradients,
            variables,
            self.loss_scale,
            by_reciprocal=self._has_reciprocal,
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
        found_inf: Tensor | None,
    ) -> None:
        """Updates unless `found_inf`, and moves the loss scale.

        Args:
            gradients: Gradients summed over replicas.
            variables: Their variables.
            found_inf: Scalar bool tensor, the same on every replica; `None`
                for gradients that are still scaled, and not yet judged.
        """
        self._check_inner_scales_nothing()

        if keras.backend.backend() != "tensorflow":
            if found_inf is None:
                found_inf = self._found_inf(gradients, variables)
                gradients = self._unscaled(gradients, variables)
            self._step_on_values(gradients, variables, found_inf)
            return
        replica_step.take(
            replica_step.Step(
                inner_optimizer=self.inner_optimizer,
                loss_scale=self.loss_scale,
                unscale=self._unscaled if found_inf is None else None,
                state=[*self._state(), *self._rule_variables()],
                judge=self._found_inf,
                move=self._move,
                options=self._options,
            ),
            gradients,
            variables,
            found_inf,
            self._traces,
        )

    def _move(self, found_inf: Tensor) -> None:
        """Writes the next state of the loss scale."""
        self._assign_state(self._next_state(self._state(), found_inf))

    def _check_inner_scales_nothing(self) -> None:
        factor = self.inner_optimizer.loss_scale_factor
        if factor is not None:
            raise ValueError(
                "`loss_scale_factor` must not be set on the inner optimizer, "
                "because it would divide the gradients once more; set "
                "`optimizer.loss_scale`. Received: "
                f"loss_scale_factor={factor!r}"
            )
