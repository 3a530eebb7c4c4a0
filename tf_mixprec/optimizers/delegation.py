"""A wrapper to see through: what it does not own is the inner optimizer's."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals

# What the constructor of `keras.optimizers.Optimizer` puts on every optimizer,
# but only means something on the optimizer that makes the update.
INNER_SETTINGS = (
    "_iterations",
    "_learning_rate",
    "_trainable_variables",
    "_trainable_variables_indices",
    "_variables",
    "clipnorm",
    "clipvalue",
    "ema_momentum",
    "ema_overwrite_frequency",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
    "weight_decay",
)


class TransparentWrapper(keras.optimizers.Optimizer):
    """Reads and sets on `inner_optimizer` what the wrapper does not have.

    Args:
        inner_optimizer: The optimizer that makes the update.
        name: String, or `None` for a unique name.
    """

    inner_optimizer: Any
    built: bool

    def __init__(self, inner_optimizer: Any, name: str | None):
        # Not that of Keras's own `LossScaleOptimizer`, which may be next: it
        # refuses a fixed scale and drops a `loss_scale_factor` without a word.
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        for setting in INNER_SETTINGS:
            delattr(self, setting)
        self.inner_optimizer = inner_optimizer

    def __getattr__(self, name: str) -> Any:
        # Only called for what the wrapper does not have itself.
        inner = vars(self).get("inner_optimizer")
        if inner is None or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_inner_setting(name):
            setattr(self.inner_optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Tensor:
        """Updates made, in steps; a skipped step is none."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: int) -> None:
        # While gradients are accumulated Keras counts micro-batches.
        per_update = self.inner_optimizer.gradient_accumulation_steps or 1
        self.inner_optimizer._iterations.assign(value * per_update)

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
            variables = keras_internals.trainable_variables(self)
        variables = list(variables)
        gradient_lists.check_match(gradients, variables)
        self.build(variables)
        self._check_variables_are_known(variables)
        return variables

    def _is_inner_setting(self, name: str) -> bool:
        inner = vars(self).get("inner_optimizer")
        return (
            inner is not None
            and not name.startswith("_")
            and name not in vars(self)
            and not hasattr(type(self), name)
            and hasattr(inner, name)
        )
