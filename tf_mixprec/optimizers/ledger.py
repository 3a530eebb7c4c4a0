"""What one call of a custom loop must know of the calls before it.

All of it is known while a function is traced, so nothing is read from a device.
"""

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec.errors import LossScaleWarning
from tf_mixprec.loss_scale import LossScaleRule
from tf_mixprec.loss_scale import StaticLossScale
from tf_mixprec.optimizers import tracing

References: TypeAlias = tuple[Callable[[], Gradient], ...]


class Unscaling(NamedTuple):
    """One unscaling of gradients that no optimizer step has used yet.

    Args:
        scaled: What each gradient was, referenced weakly.
        unscaled: What each gradient became, referenced weakly.
        found_inf: Scalar bool tensor: whether one was inf or nan.
        by_guide: Whether `get_unscaled_gradients` did it: then whatever the
            loop makes of the gradients is for `apply_gradients`.
        graph: The graph it was traced in; `None` in eager code.
    """

    scaled: References
    unscaled: References
    found_inf: Tensor
    by_guide: bool
    graph: Any


class Ledger:
    """Remembers whether the loss was scaled and gradients were unscaled.

    ```text
    scale_loss:             a new loss, so earlier unscalings are of no account
    unscale:                the step that follows must be told by its arguments
    get_unscaled_gradients: the step that follows takes unscaled gradients
    ```
    """

    def __init__(self) -> None:
        self._loss_was_scaled = False
        self._has_warned = False
        # By thread: replicas are traced in threads of their own.
        self._unscaling: dict[int, Unscaling] = {}
        self._why_not: dict[int, str] = {}

    @contextlib.contextmanager
    def forbidding(self, why_not: str) -> Iterator[None]:
        """Makes a loss that is scaled in a block an error.

        Args:
            why_not: The rule, the reason and the remedy.
        """
        thread = threading.get_ident()
        self._why_not[thread] = why_not
        try:
            yield
        finally:
            del self._why_not[thread]

    def note_scaled_loss(self) -> None:
        """Notes that the loss has been multiplied by the loss scale."""
        why_not = self._why_not.get(threading.get_ident())
        if why_not is not None:
            raise RuntimeError(f"{why_not} Received: a call of `scale_loss`")
        self._loss_was_scaled = True
        self.take_unscaled()

    def warn_if_loss_was_not_scaled(self, rule: LossScaleRule) -> None:
        """Warns, once, where gradients come from a loss that was not scaled.

        Args:
            rule: Of the loss scale. One that stays 1 leaves nothing to forget.
        """
        if rule == StaticLossScale(initial_scale=1.0):
            return
        if self._loss_was_scaled or self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "The gradients are about to be divided by the loss scale, but no "
            "loss was passed through `scale_loss`. If the loss was not "
            "multiplied, each update will be too small by that factor: "
            "differentiate `optimizer.scale_loss(loss)` instead of `loss`. "
            "For gradients that are already unscaled, call "
            "`optimizer.apply_unscaled(gradients, variables, found_inf)`.",
            LossScaleWarning,
            stacklevel=5,  # who called `apply`, `apply_gradients` or `unscale`
        )

    def note_unscaled(
        self,
        scaled: Sequence[Gradient],
        unscaled: Sequence[Gradient],
        found_inf: Tensor,
        *,
        by_guide: bool,
    ) -> None:
        """Notes that a loop has unscaled gradients itself."""
        self._unscaling[threading.get_ident()] = Unscaling(
            _references(scaled),
            _references(unscaled),
            found_inf,
            by_guide,
            tracing.current_graph(),
        )

    def take_unscaled(self) -> bool:
        """Notes that unscaled gradients have been used, if there are any.

        Returns:
            Whether there were.
        """
        return self._unscaling.pop(threading.get_ident(), None) is not None

    def found_inf_if_unscaled(
        self, gradients: Sequence[Gradient]
    ) -> Tensor | None:
        """Returns `found_inf` of the gradients if the loop has unscaled them.

        Args:
            gradients: What is about to be applied.

        Returns:
            A scalar bool tensor, or `None` if the gradients are still scaled.

        Raises:
            RuntimeError: If it cannot be known whether they are.
        """
        noted = self._unscaling.pop(threading.get_ident(), None)
        if noted is None or _are(gradients, noted.scaled):
            return None
        if not noted.by_guide and not _are(gradients, noted.unscaled):
            raise RuntimeError(
                "Gradients made from the result of `unscale` must be applied "
                "with `optimizer.apply_unscaled(gradients, variables, "
                "found_inf)`, because `apply` and `apply_gradients` divide by "
                "the loss scale. Received: gradients that `unscale` neither "
                "took nor returned."
            )
        if noted.graph is not tracing.current_graph():
            raise RuntimeError(
                "`get_unscaled_gradients` and `apply_gradients` must be called "
                "in the same function, because only then is it known that the "
                "gradients must not be divided by the loss scale again. "
                "Elsewhere write `gradients, found_inf = "
                "optimizer.unscale(gradients)` and "
                "`optimizer.apply_unscaled(gradients, variables, found_inf)`. "
                "Received: a call of `apply_gradients` in another graph."
            )
        return noted.found_inf


def _references(gradients: Sequence[Gradient]) -> References:
    return tuple(_reference(g) for g in gradients)


def _reference(gradient: Gradient) -> Callable[[], Gradient]:
    """Returns a function that gives the gradient while it is alive."""
    try:
        return weakref.ref(gradient)
    except TypeError:  # a Python number, or `None`
        return lambda: gradient


def _are(gradients: Sequence[Gradient], references: References) -> bool:
    """Returns whether these are the very tensors that were noted."""
    return len(gradients) == len(references) and all(
        gradient is noted()
        for gradient, noted in zip(gradients, references, strict=True)
    )
