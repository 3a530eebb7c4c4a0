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
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import next_state
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers.ledger import Ledger
from tf_mixprec.optimizers.state_variables import LossScaleVariables
from tf_mixprec.optimizers.tracing import as_written


class SkippingStep(LossScaleVariables):
    """A wrapper that updates, or skips the step, and moves the loss scale.

    Args:
        inner_optimizer: The optimizer that makes the update.
        rule: How the loss scale starts and moves.
        skip_nonfinite: Whether a step with inf or nan is skipped.
        name: String, or `None` for a unique name.
    """

    built: bool

    def __init__(
        self,
        inner_optimizer: Any,
        rule: LossScaleRule,
        skip_nonfinite: bool,
        name: str | None,
    ):
        super().__init__(inner_optimizer, rule, name)
        self._skip_nonfinite = skip_nonfinite
        self._ledger = Ledger()

    @property
    def skip_nonfinite(self) -> bool:
        """Whether a step with inf or nan is skipped."""
        return self._skip_nonfinite

    @skip_nonfinite.setter
    def skip_nonfinite(self, value: bool) -> None:
        raise AttributeError(
            "`skip_nonfinite` must be given to the constructor, because the "
            f"steps are traced with it. Received: skip_nonfinite={value!r}"
        )

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
                `tf.IndexedSlices` or `None`.
            trainable_variables: The variables they belong to. Defaults to
                those that the optimizer was built with.

        Raises:
            ValueError: If gradients and variables do not match, or every
                gradient is `None`.
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
        if found_inf is None:
            self._ledger.warn_if_loss_was_not_scaled()
            gradients, found_inf = self._unscaled(gradients, variables)
        else:
            found_inf = self._also_found(found_inf, gradients)
        self._step(gradients, variables, found_inf)

    @as_written
    def apply_unscaled(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Makes a step with gradients that are not scaled (any more).

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
        self._ledger.forget_unscaled()
        gradients = list(gradients)
        if not gradients:
            return
        variables = self._known_variables(gradients, variables)
        self._step(gradients, variables, self._also_found(found_inf, gradients))

    def _known_variables(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable] | None,
    ) -> list[Variable]:
        """Returns the variables of the gradients, building if need be."""
        if variables is None:
            if not self.built:
                raise ValueError(
                    "When passing `grads` without `variables`, the optimizer "
                    "must already be built on a list of variables. Call "
                    "`optimizer.build(trainable_variables)` first."
                )
            variables = self._trainable_variables
        variables = list(variables)
        if len(gradients) != len(variables):
            raise ValueError(
                "Gradients and variables must match one to one, because each "
                "gradient updates its variable. Received: "
                f"{len(gradients)} gradients for {len(variables)} variables"
            )
        if any(isinstance(g, tuple) for g in gradients):
            raise ValueError(
                "`grads` must be gradients only, because the variables are an "
                "argument of their own; for pairs call `apply_gradients`. "
                "Received: (gradient, variable) pairs"
            )
        # Here and not in the inner optimizer, where it would be raised from
        # within a branch of the graph.
        gradient_lists.check_any_exists(gradients)
        self.build(variables)
        self._check_variables_are_known(variables)
        return variables

    def _unscaled(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> tuple[list[Gradient], Tensor]:
        unscaled, found_inf = gradient_lists.unscale(
            gradients, variables, self.loss_scale
        )
        return unscaled, distribution.on_any_replica(found_inf)

    def _also_found(
        self, found_inf: Tensor | None, gradients: Sequence[Gradient]
    ) -> Tensor:
        found_now = gradient_lists.found_inf(gradients)
        if found_inf is not None:
            found_now = ops.logical_or(ops.cast(found_inf, "bool"), found_now)
        return distribution.on_any_replica(found_now)

    def _step(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        found_inf: Tensor,
    ) -> None:
        """Updates unless `found_inf`, and moves the loss scale.

        Args:
            gradients: Unscaled gradients.
            variables: Their variables.
            found_inf: Scalar bool tensor, the same on every replica.
        """
        self._check_inner_scales_nothing()
        if keras.backend.backend() != "tensorflow":
            self._step_on_values(gradients, variables, found_inf)
            return
        if self.skip_nonfinite:
            distribution.update_unless(
                found_inf, self._update, gradients, variables
            )
        else:
            self._update(gradients, variables)
        self._assign_state(self._next_state(self._state(), found_inf))

    def _update(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        self.inner_optimizer.apply(gradients, trainable_variables=variables)

    def _check_inner_scales_nothing(self) -> None:
        factor = self.inner_optimizer.loss_scale_factor
        if factor is not None:
            raise ValueError(
                "`loss_scale_factor` must not be set on the inner optimizer, "
                "because it would divide the gradients once more; set "
                "`optimizer.loss_scale`. Received: "
                f"loss_scale_factor={factor!r}"
            )

    def _next_state(
        self, state: LossScaleState, found_inf: Tensor
    ) -> LossScaleState:
        new_state = next_state(state, found_inf, self._rule_in_force())
        if self.skip_nonfinite:
            return new_state
        return new_state._replace(
            skipped_steps=state.skipped_steps,
            consecutive_skipped_steps=state.consecutive_skipped_steps,
        )

    def _step_on_values(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        found_inf: Tensor,
    ) -> None:
        """Does what `_step` does by way of `stateless_apply`."""
        gradient_of = {
            self._get_variable_index(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        trainable_variables = self._trainable_variables
        new_values = self._stateless_step(
            [variable.value for variable in self.variables],
            [gradient_of.get(i) for i in range(len(trainable_variables))],
            [variable.value for variable in trainable_variables],
            found_inf,
        )
        for variable, value in zip(
            [*trainable_variables, *self.variables],
            [*new_values[0], *new_values[1]],
            strict=True,
        ):
            variable.assign(value)

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Tensor],
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Makes a step on values instead of variables, for JAX and torch.

        Args:
            optimizer_variables: The values of `self.variables`.
            grads: Gradients of the scaled loss, one for each variable that
                the optimizer was built with.
            trainable_variables: The values of those variables.

        Returns:
            The new values of `trainable_variables` and of `self.variables`.

        Raises:
            ValueError: If the optimizer is not built, if every gradient is
                `None`, or on TensorFlow.
        """
        if not self.built:
            raise ValueError(
                f"To call `stateless_apply`, {type(self).__name__} must be "
                "built (i.e. its variables must have been created). You can "
                "build it via `optimizer.build(trainable_variables)`."
            )
        gradient_lists.check_any_exists(grads)
        loss_scale = optimizer_variables[
            LossScaleState._fields.index("loss_scale")
        ]
        unscaled, found_inf = gradient_lists.unscale(
            grads, self._trainable_variables, loss_scale
        )
        return self._stateless_step(
            optimizer_variables, unscaled, trainable_variables, found_inf
        )

    def _stateless_step(
        self,
        optimizer_variables: Sequence[Tensor],
        unscaled: Sequence[Gradient],
        trainable_variables: Sequence[Tensor],
        found_inf: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        count = len(LossScaleState._fields)
        state = LossScaleState(*optimizer_variables[:count])
        inner_values = optimizer_variables[count:]
        new_values, new_inner_values = self.inner_optimizer.stateless_apply(
            inner_values, unscaled, trainable_variables
        )
        if self.skip_nonfinite:
            new_values = _select(found_inf, trainable_variables, new_values)
            new_inner_values = _select(
                found_inf, inner_values, new_inner_values
            )
        new_state = self._next_state(state, found_inf)
        return list(new_values), [*new_state, *new_inner_values]


def _select(
    condition: Tensor, if_true: Sequence[Tensor], if_false: Sequence[Tensor]
) -> list[Tensor]:
    """Returns one of two lists of tensors of equal shapes, without a branch."""
    return [
        ops.where(condition, a, b)
        for a, b in zip(if_true, if_false, strict=True)
    ]
