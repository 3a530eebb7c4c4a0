"""What steps note for callbacks, where one has asked for it.

None of it is state: it is in no file and no checkpoint, and steps that are
traced before it is asked for do not have it.
"""

import functools
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers.clipping import Clipping
from tf_mixprec.optimizers.gradient_masks import GradientMasks
from tf_mixprec.optimizers.norm_record import NormRecord
from tf_mixprec.optimizers.scale_moves import ScaleMoves
from tf_mixprec.optimizers.verdict import Verdict


class StepNotes:
    """What the steps of an optimizer note, nothing to begin with.

    Each method that asks for something is to be called in the scope of the
    strategy, and returns whether steps have to be traced anew for it.

    Args:
        optimizer: The wrapper that makes the steps.

    Attributes:
        moves: The moves of the loss scale, or `None`.
        norms: The norms of the gradients, or `None`.
        masks: Where there were gradients, or `None`.
        notes_masks: Whether steps that are traced now note the masks.
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self.moves: ScaleMoves | None = None
        self.norms: NormRecord | None = None
        self.masks: GradientMasks | None = None
        self.notes_masks = False

    @property
    def key(self) -> Hashable:
        """What the trace of a step depends on."""
        return (
            self.moves is not None,
            self.norms is not None,
            self.notes_masks and self.masks is not None,
        )

    def follow_scale(self) -> bool:
        """Makes steps note how the loss scale moves."""
        if self.moves is not None:
            return False
        self.moves = ScaleMoves(self._optimizer.loss_scale)
        return True

    def record_norms(self) -> bool:
        """Makes steps note the norms of their gradients, counted from now."""
        if self.norms is not None:
            self.norms.reset()
            return False
        self.norms = NormRecord()
        return True

    def make_masks(self) -> None:
        """Makes the masks of an optimizer that is built.

        Only steps that are traced with `notes_masks` write to them.
        """
        if self.masks is None:
            self.masks = GradientMasks(
                keras_internals.trainable_variables(self._optimizer),
                functools.partial(keras_internals.key_of, self._optimizer),
            )

    def note_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
        clipping: Clipping,
        divisor: Callable[[], Tensor],
        norm: Tensor | None,
    ) -> None:
        """Notes the gradients of a step, before it is made.

        Args:
            gradients: Summed over replicas.
            variables: Their variables.
            verdict: What is known of them.
            clipping: How the step clips them, beside the inner optimizer.
            divisor: Returns what they are to be divided by, a scalar float32
                tensor.
            norm: Scalar float32 tensor: the global norm of what is divided, or
                `None` where it is not known yet.
        """
        if self.masks is not None and self.notes_masks:
            self.masks.note(gradients, variables)
        if self.norms is None:
            return
        arguments = (gradients, variables, divisor())
        if norm is None:
            norm = verdict.norm
        if norm is None:
            _, norm = gradient_lists.found_inf_and_norm(
                *arguments, norm_counts=False
            )
        bounds = (clipping, clipping_of(self._optimizer))
        first, second = (each.clips(*arguments, norm) for each in bounds)
        self.norms.add(~verdict.is_skipped, norm, first | second)


def clipping_of(optimizer: Any) -> Clipping:
    """Returns how an optimizer itself clips gradients.

    Args:
        optimizer: One that is wrapped or not; no `MultiOptimizer`.
    """
    inner = keras_internals.updating(optimizer)
    return Clipping(
        global_norm=inner.global_clipnorm or None,
        norm=inner.clipnorm or None,
        value=inner.clipvalue or None,
    )
