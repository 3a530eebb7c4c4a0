"""The policy of models, which pass on what they are given."""

from typing import Any

import keras

from tf_mixprec.policies.policy import Policy


@keras.saving.register_keras_serializable("tf_mixprec")
class ContainerPolicy(Policy):
    """A policy that leaves inputs to the layers inside.

    Keras casts what a model is given to its compute dtype, even ids on their
    way to an embedding and images on their way to a float32 normalization,
    which they would reach rounded or infinite.
    """

    def convert_input(self, x: Any, autocast: bool, dtype: str) -> Any:
        """Returns `x` as a tensor of its own dtype."""
        return super().convert_input(x, False, dtype)
