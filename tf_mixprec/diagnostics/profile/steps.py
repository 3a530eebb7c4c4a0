"""Copies of a model in other precisions, with steps to be timed."""

import warnings
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec._typing import Tensor
from tf_mixprec.conversion import convert
from tf_mixprec.conversion.rebuild import CannotRebuildError
from tf_mixprec.conversion.rebuild import rebuilt
from tf_mixprec.diagnostics.profile.graph import graph_facts
from tf_mixprec.diagnostics.profile.records import GraphFacts
from tf_mixprec.diagnostics.subject import Batch
from tf_mixprec.diagnostics.subject import Subject
from tf_mixprec.errors import ConversionWarning
from tf_mixprec.policies.policy import policy_text
from tf_mixprec.training import TrainStep

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

AS_IT_IS = "as it is"
FORWARD, BACKWARD, STEP = "forward", "backward", "step"
OPTIMIZER = "optimizer"  # what a step takes besides
_WARM_UP = 25  # from 2**24 the loss scale has come down to 1 by then


class ProfiledSteps:
    """A copy of a model in one precision, and three functions of a batch.

    Args:
        model: The model, which stays as it is.
        policy: A policy or `mp.PrecisionRules`, or `AS_IT_IS`.
        batch: `(x, y, sample_weight)`, tensors.
        loss: As in `model.compile`.
        optimizer: The optimizer, of which a copy is used, or a name.
        jit_compile: Bool or `"auto"`.

    Attributes:
        label: The name of the policy.
        graph: What forward and backward pass do.
    """

    def __init__(
        self,
        model: Any,
        policy: Any,
        batch: Batch,
        loss: Any,
        optimizer: Any,
        jit_compile: bool | str,
    ):
        self.label = label_of(policy)
        self._step = TrainStep(
            _copy(model, policy),
            _copied_optimizer(optimizer),
            loss,
            loss_weights=_loss_weights(model),
            jit_compile=jit_compile,
        )
        self.jit_compile = bool(self._step.model.jit_compile)
        self._batch = batch
        self._step.build(batch)
        self._subject = Subject(self._step)
        self._forward = self._function(self._loss_of)
        self._backward = self._function(self._gradients_of)
        self.traced = self._backward.get_concrete_function(batch)
        self.graph: GraphFacts = graph_facts(self.traced)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Returns what to time by name, warmed up."""
        calls = {
            FORWARD: lambda: self._forward(self._batch),
            BACKWARD: lambda: self._backward(self._batch),
            STEP: self.step,
        }
        for call in calls.values():
            call()
        warm_up(calls[STEP])
        return calls

    def step(self) -> Any:
        """Makes a step."""
        return self._step(*self._batch)

    def step_of(self, batch: Batch) -> Callable[[], Any]:
        """Returns what makes a step of another batch, warmed up."""

        def step() -> Any:
            return self._step(*batch)

        warm_up(step)
        return step

    def _function(self, function: Callable[..., Any]) -> Any:
        return tf.function(
            function, autograph=False, jit_compile=self.jit_compile
        )

    def _loss_of(self, batch: Batch) -> Tensor:
        loss = self._subject.loss(batch, None, training=True)
        return self._step.optimizer.scale_loss(loss)

    def _gradients_of(self, batch: Batch) -> Any:
        variables = self._step.model.trainable_weights
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([each.value for each in variables])
            loss = self._loss_of(batch)
        values = [each.value for each in variables]
        return [g for g in tape.gradient(loss, values) if g is not None]


def warm_up(step: Callable[[], Any]) -> None:
    """Makes steps until one is not skipped: that takes another time."""
    for _ in range(_WARM_UP):
        if not bool(step()["skipped"]):
            break
    step()


def label_of(policy: Any) -> str:
    """Returns the name of a policy or of rules."""
    if isinstance(policy, keras.DTypePolicy):
        return policy_text(policy)
    return str(getattr(policy, "policy", policy))


def _copy(model: Any, policy: Any) -> Any:
    """Returns a copy of a model; never the model itself, changed."""
    if policy == AS_IT_IS:
        return _clone(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConversionWarning)
        try:
            return convert(model, policy)
        except ConversionWarning as warning:
            raise ValueError(
                "`policies` must be some that the model has a copy with, "
                "because a profile does not change the model; convert it "
                f"yourself (`mp.convert`). It says: {warning} Received: "
                f"policy={policy!r}"
            ) from None


def _clone(model: Any) -> Any:
    try:
        return rebuilt(model, {}, keras.config.dtype_policy())
    except CannotRebuildError as error:
        raise ValueError(
            "`model` must be one that can be made from its config, because a "
            "profile trains copies; write `get_config` and `from_config`. "
            f"Received: {model.name!r}, of which is said: {error}"
        ) from error


def _copied_optimizer(optimizer: Any) -> Any:
    """Returns an optimizer of the same kind, whose steps move nothing.

    So that timing is not training: gradients stay what they are.
    """
    if isinstance(optimizer, str):
        copy = keras.optimizers.get(optimizer)
    else:
        copy = type(optimizer).from_config(optimizer.get_config())
    copy.gradient_accumulation_steps = None  # a step that only adds up
    if not _has_schedule(copy):
        copy.learning_rate = 0.0
    return copy


def _has_schedule(optimizer: Any) -> bool:
    """Returns whether a learning rate cannot be set."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    rate = optimizer.get_config().get("learning_rate")
    return not isinstance(rate, float)


def _loss_weights(model: Any) -> Any:
    if not model.compiled:
        return None
    return (model.get_compile_config() or {}).get("loss_weights")
