"""Recurrent layers whose inputs are multiplied once, and not step by step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.numerics import rounded_outside
from tf_mixprec.numerics.casting import has_16_bits
from tf_mixprec.policies import hardware


@keras.saving.register_keras_serializable("tf_mixprec")
class LSTM(keras.layers.LSTM):
    """An LSTM that multiplies all time steps with its kernel at once.

    In the loop there is one matrix product a step and not two, and the kernel's
    gradient is summed in one product, and not in 16 bits step by step. The
    recurrent kernel is cast once, and its gradient summed in float32. Does so
    in 16 bits on TensorFlow without a GPU (which has cuDNN's) and without
    dropout; else it is Keras's. Takes the arguments of `keras.layers.LSTM`.
    """

    def inner_loop(
        self,
        sequences: Tensor,
        initial_state: Any,
        mask: Any,
        training: bool = False,
    ) -> Any:
        """Returns what Keras's returns: last output, outputs, states."""
        if not self._projects():
            return super().inner_loop(sequences, initial_state, mask, training)
        features, gates = self.cell.kernel.shape
        flat = ops.reshape(sequences, (-1, features))
        steps = sequences.shape[1]
        shape = (-1, ops.shape(sequences)[1] if steps is None else steps, gates)
        projected = ops.reshape(ops.matmul(flat, self.cell.kernel), shape)
        if self.cell.use_bias:
            projected = ops.add(projected, self.cell.bias)
        with _taking_projected(self.cell):
            return super().inner_loop(projected, initial_state, mask, training)

    def _projects(self) -> bool:
        return (
            has_16_bits(self.compute_dtype)
            and hardware.runs_on_cpu()
            and not self.dropout
            and not self.recurrent_dropout
            and self.use_cudnn is not True
            and self.cell.implementation != 1
        )


@contextlib.contextmanager
def _taking_projected(cell: Any) -> Iterator[None]:
    """Makes a cell take inputs that are multiplied by its kernel already.

    And that have the bias. The recurrent kernel is rounded once.
    """
    rounded = ops.convert_to_tensor(cell.recurrent_kernel)
    bits = rounded_outside.bits_of(rounded)
    wide = ops.cast(rounded, "float32")  # what its gradient is summed in

    def call(
        inputs: Tensor, states: Any, training: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, carry = states
        kernel = rounded_outside.from_bits(bits, wide, rounded.dtype)
        z = ops.add(inputs, ops.matmul(hidden, kernel))
        take, keep, new, out = ops.split(z, 4, axis=1)
        gate = cell.recurrent_activation
        carry = gate(keep) * carry + gate(take) * cell.activation(new)
        hidden = gate(out) * cell.activation(carry)
        return hidden, [hidden, carry]

    # Past Keras's tracking of attributes.
    vars(cell)["call"] = call
    try:
        yield
    finally:
        del vars(cell)["call"]
