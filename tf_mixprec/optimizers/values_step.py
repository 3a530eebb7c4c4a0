"""A step on values instead of variables, for Keras backends but TensorFlow."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import LossScaleState
from tf_mixprec.loss_scale import next_state
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers.state_variables import LossScaleVariables
from tf_mixprec.optimizers.step_options import StepOptions
from tf_mixprec.optimizers.step_options import TracedOption


class ValuesStep(LossScaleVariables):
    """A wrapper that makes a step without writing to variables.

    Args:
        inner_optimizer: The optimizer that makes the update.
        rule: How the loss scale starts and moves.
        options: What a step is traced with.
        name: String, or `None` for a unique name.
    """

    skip_nonfinite = TracedOption()
    jit_compile = TracedOption()
    all_reduce_dtype = TracedOption()

    def __init__(
        self,
        inner_optimizer: Any,
        rule: LossScaleRule,
        options: StepOptions,
        name: str | None,
    ):
        super().__init__(inner_optimizer, rule, name)
        self._options = options

    def _next_state(
        self, state: LossScaleState, found_inf: Tensor
    ) -> LossScaleState:
        new_state = next_state(state, found_inf, self._rule_in_force())
        if self._options.skip_nonfinite:
            return new_state
        return new_state._replace(
            skipped_steps=state.skipped_steps,
            consecutive_skipped_steps=state.consecutive_skipped_steps,
        )

    def _unscaled(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        factor: Tensor | None = None,
    ) -> list[Gradient]:
        if factor is not None:
            return gradient_lists.multiplied(gradients, variables, factor)
        return gradient_lists.unscaled(
            gradients,
            variables,
            self.loss_scale,
            by_reciprocal=self._has_reciprocal,
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
        unscaled = gradient_lists.unscaled(
            grads,
            self._trainable_variables,
            loss_scale,
            by_reciprocal=self._has_reciprocal,
        )
        found_inf = gradient_lists.found_inf(unscaled)
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
        if self._options.skip_nonfinite:
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
