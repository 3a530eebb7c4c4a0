"""A function of gradients, traced where nothing of the caller is known."""

import re
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import keras

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.optimizers import rounded_products
from tf_mixprec.optimizers.local_variables import LocalVariables
from tf_mixprec.optimizers.verdict import Verdict

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

T = TypeVar("T")
Body = Callable[[Sequence[Gradient], Sequence[Variable], Verdict], None]

# Operations of TensorFlow that write to a variable.
_WRITES = re.compile(r"Assign\w*VariableOp|Resource(?!Gather)\w+")


class UnmaskedWriteError(Exception):
    """The optimizer writes to variables in a way that cannot be masked."""


class TracedApart:
    """The step of a replica, as a function of its gradients.

    Args:
        body: What a step does with gradients, their variables and what is
            known of them.
        gradients: Gradients like those it will be called with.
        variables: Their variables.
        verdict: A verdict with the fields that it will be called with.
        local: The components of all variables of the step.
        masks: Whether writes to variables are masked where the step is skipped.
        jit_compile: Whether XLA compiles the function.

    Raises:
        UnmaskedWriteError: If a write was not masked although it ought to be.
    """

    def __init__(
        self,
        body: Body,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        verdict: Verdict,
        local: LocalVariables,
        *,
        masks: bool,
        jit_compile: bool,
    ):
        structure = list(gradients)
        write_counts: list[int] = []

        def function(flat: Sequence[Tensor], scalars: Sequence[Tensor]) -> None:
            known = verdict.with_tensors(scalars)
            with (
                tf.device(local.device),
                local.seen(known.is_skipped if masks else None) as views,
            ):
                held = [
                    v if isinstance(v, keras.Variable) else views[id(v)]
                    for v in variables
                ]
                body(_packed(structure, flat), held, known)
                write_counts.append(sum(v.write_count for v in views.values()))

        flat = _flat(structure)
        specs = (
            [tf.TensorSpec(t.shape, t.dtype) for t in flat],
            [tf.TensorSpec((), t.dtype) for t in verdict.tensors],
        )
        self._function = _in_thread(lambda: _traced(function, *specs))
        if masks:
            _check_writes(self._function.graph.as_graph_def(), write_counts[-1])
        self._zeros: list[Tensor] = []
        if jit_compile:
            self._zeros = rounded_products.zeros()
            self._function = _in_thread(
                lambda: _compiled(self._function, specs)
            )

    def __call__(self, gradients: Sequence[Gradient], verdict: Verdict) -> None:
        """Takes the step."""
        self._function(_flat(gradients), verdict.tensors, *self._zeros)


def _traced(function: Callable[..., None], *specs: Any) -> Any:
    """Returns the concrete function."""
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def _compiled(concrete: Any, specs: Sequence[Any]) -> Any:
    """Returns a function that XLA compiles, with the bits of the other."""
    graph = concrete.graph.as_graph_def()
    names = [tensor.op.name for tensor in concrete.inputs]

    def function(
        flat: Sequence[Tensor], scalars: Sequence[Tensor], *zeros: Tensor
    ) -> None:
        here = tf.compat.v1.get_default_graph()
        captured = [here.capture(t) for t in concrete.captured_inputs]
        rounded_products.import_rounded(
            graph, names, [*flat, *scalars, *captured], list(zeros)
        )

    zeros = [tf.TensorSpec((), z.dtype) for z in rounded_products.zeros()]
    return tf.function(
        function, autograph=False, jit_compile=True
    ).get_concrete_function(*specs, *zeros)


def _flat(gradients: Sequence[Gradient]) -> list[Tensor]:
    """Returns the tensors that gradients are made of, without the missing."""
    present = [g for g in gradients if g is not None]
    return [
        tf.convert_to_tensor(tensor)
        for tensor in tf.nest.flatten(present, expand_composites=True)
    ]


def _packed(
    structure: Sequence[Gradient], flat: Sequence[Tensor]
) -> list[Gradient]:
    """Returns gradients like those of `structure`, made of other tensors."""
    present = [g for g in structure if g is not None]
    packed = iter(
        tf.nest.pack_sequence_as(present, list(flat), expand_composites=True)
    )
    return [None if g is None else next(packed) for g in structure]


def _check_writes(graph: Any, write_count: int) -> None:
    """Raises unless every write in the graph went through a view."""
    functions = graph.library.function
    nodes = [*graph.node, *(n for f in functions for n in f.node_def)]
    writes = [node.op for node in nodes if _WRITES.fullmatch(node.op)]
    if len(writes) != write_count:
        raise UnmaskedWriteError(
            "Every write to a variable must go through its `assign` methods, "
            "because a skipped step must be able to undo it; use "
            "`jit_compile=False` with this optimizer. Received: "
            f"{len(writes)} writes ({', '.join(sorted(set(writes)))}), "
            f"{write_count} of them through methods"
        )


def _in_thread(function: Callable[[], T]) -> T:
    """Returns what the function returns in a thread of its own.

    Strategies, devices, control flow and name scopes are known by thread, so
    there are none of the caller's inside.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = function()
        except BaseException as error:
            outcome["error"] = error  # raised in the caller's thread

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
