"""A step that notes what callbacks ask for, before it is made."""

import functools
from collections.abc import Sequence

from keras import ops

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.live_rule import LiveRule
from tf_mixprec.optimizers.nonfinite_counts import NonfiniteCounts
from tf_mixprec.optimizers.step_notes import StepNotes
from tf_mixprec.optimizers.values_step import ValuesStep
from tf_mixprec.optimizers.verdict import Verdict


class NotedStep(ValuesStep):
    """A wrapper that notes which gradients were bad, and more, if asked to."""

    _nonfinite_counts: NonfiniteCounts | None = None

    @functools.cached_property
    def notes(self) -> StepNotes:
        """What steps note for callbacks."""
        return StepNotes(self)

    def count_nonfinite(self) -> None:
        """Makes steps that are traced from now on count bad gradients.

        `nonfinite_counts` and `skipped_at_floor` have the counts, which start
        at 0; a second call starts them again. `mp.callbacks.OverflowGuard`
        calls this. Call it in the scope of the strategy, with the optimizer
        built. On other backends than TensorFlow nothing is counted.
        """
        if self._nonfinite_counts is None:
            self._nonfinite_counts = NonfiniteCounts(
                keras_internals.trainable_variables(self),
                functools.partial(keras_internals.key_of, self),
            )
        else:
            self._nonfinite_counts.reset()

    @property
    def nonfinite_counts(self) -> dict[str, int]:
        """By path of the variable: steps in which its gradient was inf or nan.

        Variables without such a step are left out, and micro-batches count as
        steps. Asking waits for the device.
        """
        counts = self._nonfinite_counts
        return {} if counts is None else counts.read()

    @property
    def skipped_at_floor(self) -> int:
        """Steps skipped at the floor of the loss scale, if they are counted.

        The floor is `min_scale`; a fixed scale is always there. A step above
        it starts the count at 0. Asking waits for the device.
        """
        counts = self._nonfinite_counts
        return 0 if counts is None else counts.read_at_floor()

    def _note(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
        *,
        scaled: bool,
        clipping: Clipping,
        divisor: Tensor | None,
        norm: Tensor | None,
    ) -> None:
        """Notes what callbacks ask for, before the step is made."""
        self._note_nonfinite(
            verdict.found_inf,
            gradients,
            variables,
            skips=verdict.skips,
            scaled=scaled,
        )

        def divided_by() -> Tensor:
            if divisor is not None:
                return divisor
            return ops.convert_to_tensor(self.loss_scale if scaled else 1.0)

        self.notes.note_gradients(
            gradients, variables, verdict, clipping, divided_by, norm
        )

    def _note_nonfinite(
        self,
        found_inf: Tensor,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        *,
        skips: Tensor | None,
        scaled: bool,
    ) -> None:
        """Counts the gradients that are inf or nan, if that is asked for.

        Args:
            found_inf: Scalar bool tensor: whether one is.
            gradients: The same on every replica.
            variables: Their variables.
            skips: Scalar bool tensor: whether the step is skipped; `None` if
                that is `found_inf`.
            scaled: Whether the gradients are still scaled.
        """
        counts = self._nonfinite_counts
        if counts is None:
            return
        counts.add_if(
            found_inf,
            lambda: self._flags(counts, gradients, variables, scaled=scaled),
        )
        if self._options.skip_nonfinite:
            skips = found_inf if skips is None else skips
            counts.add_at_floor(skips, self._is_at_floor())

    def _flags(
        self,
        counts: NonfiniteCounts,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        *,
        scaled: bool = True,
    ) -> Tensor:
        """Returns for each counter what `_found_inf` does for all gradients."""
        flags = counts.flags(gradients, variables)
        if self._scale_stays_above_one or not scaled:
            return flags
        unscaled = self._unscaled(gradients, variables)
        return ops.logical_or(flags, counts.flags(unscaled, variables))

    def _is_at_floor(self) -> Tensor:
        """Returns whether the loss scale cannot back off any further."""
        # Not the rule in force: that of a shared scale moves nothing.
        if not isinstance(self._rule, LiveRule):
            return ops.convert_to_tensor(True)
        scale = ops.convert_to_tensor(self.loss_scale)
        return scale <= self._rule.read().min_scale
