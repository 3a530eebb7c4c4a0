"""A Keras dtype policy that also says what a layer returns."""

from typing import Any

import keras

from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import initializers
from tf_mixprec.policies import notation
from tf_mixprec.policies import output_dtypes


@keras.saving.register_keras_serializable("tf_mixprec")
class Policy(keras.DTypePolicy):
    """What a layer computes in, keeps its variables in, and returns.

    Accepted wherever Keras takes `dtype=`, and saved in `.keras` files.

    Args:
        compute_dtype: The dtype of inputs and of the computation: the name of a
            float dtype (`"float16"`); the name of a Keras policy
            (`"mixed_float16"`, which sets the variable dtype as well); or all
            three in jmp's notation, `"params=float32,compute=float16,
            output=float32"`, in short `"p=f32,c=f16,o=f32"`, `"half"` or
            `"full"`; or a policy to take them from.
        variable_dtype: The dtype of variables. Defaults to what
            `compute_dtype` says, and to the compute dtype itself.
        output_dtype: The dtype of floating-point outputs. Defaults to what
            `compute_dtype` says, and to what the layer computes, as in Keras.

    Raises:
        ValueError: If a dtype is none of floating-point numbers, or a string is
            not in the notation.
        TypeError: If an argument is neither a string nor a policy.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tf_mixprec as mp
    >>> policy = mp.Policy("float16", "float32", "float32")
    >>> layer = keras.layers.Dense(2, dtype=policy)
    >>> layer(np.ones((1, 2))).dtype
    tf.float32
    >>> mp.Policy("p=f32,c=bf16,o=f32")
    <Policy "params=float32,compute=bfloat16,output=float32">

    The notation is that of
    [jmp](https://github.com/google-deepmind/jmp#policies).
    """

    def __init__(
        self,
        compute_dtype: Any,
        variable_dtype: str | None = None,
        output_dtype: str | None = None,
    ):
        compute, variable, output = notation.parse(compute_dtype)
        if variable_dtype is not None:
            variable = notation.float_dtype(variable_dtype, "variable_dtype")
        if output_dtype is not None:
            output = notation.float_dtype(output_dtype, "output_dtype")
        self._compute_dtype = compute
        self._variable_dtype = variable
        self._output_dtype = output
        self._name = notation.keras_name(compute, variable)
        self._quantization_mode = None
        if output not in (None, compute):
            output_dtypes.cast_outputs_of_layers()
        if has_16_bits(variable):
            initializers.widen_orthogonal()

    @property
    def output_dtype(self) -> str:
        """The dtype of floating-point outputs."""
        return self._output_dtype or self._compute_dtype

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {
            "compute_dtype": self._compute_dtype,
            "variable_dtype": self._variable_dtype,
            "output_dtype": self._output_dtype,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Policy":
        """Returns the policy of a config."""
        return cls(**config)

    def __repr__(self) -> str:
        return f'<{type(self).__name__} "{self}">'

    def __str__(self) -> str:
        """The policy in jmp's notation."""
        return (
            f"params={self.variable_dtype},compute={self.compute_dtype},"
            f"output={self.output_dtype}"
        )

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and isinstance(other, Policy)
            and other.get_config() == self.get_config()
        )

    def __hash__(self) -> int:
        return hash((type(self), *self.get_config().values()))


def as_policy(policy: Any) -> keras.DTypePolicy:
    """Returns a policy as it is, and that of a string for `mp.Policy`."""
    return policy if isinstance(policy, keras.DTypePolicy) else Policy(policy)


def keras_policy(policy: Policy) -> keras.DTypePolicy:
    """Returns Keras's own policy where it has one that does the same.

    A file with those loads without this package.
    """
    plain = policy.output_dtype == policy.compute_dtype
    if plain and not policy.name.startswith("params="):
        return keras.DTypePolicy(policy.name)
    return policy


def policy_text(policy: keras.DTypePolicy) -> str:
    """Returns a policy as a string: the name that Keras has, if it says all.

    Args:
        policy: The policy.

    Example:

    >>> policy_text(Policy("float16", "float32"))
    'mixed_float16'
    >>> policy_text(Policy("float16", "float32", "float32"))
    'params=float32,compute=float16,output=float32'
    """
    if isinstance(policy, Policy):
        policy = keras_policy(policy)
    return str(policy) if isinstance(policy, Policy) else policy.name


output_dtypes.keep_policies(Policy)
