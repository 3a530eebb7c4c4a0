"""The batch of the last step of `fit`, for callbacks that look at it again."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Tensor
from tf_mixprec.optimizers import LossScaleOptimizer
from tf_mixprec.training import keras_internals
from tf_mixprec.training.instance_methods import cover_method
from tf_mixprec.training.keras_loop import step_behind

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class LastBatch:
    """Keeps what the last step of a model was given.

    Tensors that the step had anyway: nothing is copied, and nothing waits. In
    Keras's own loop the step returns them beside its logs; the step of a
    `mp.TrainStep` is handed its batch by hand. With several steps in an
    execution it is the batch of the last one. Callbacks of one `fit` share what
    is set on the model for this.

    Args:
        model: The model that `fit` is called on.
    """

    def __init__(self, model: Any):
        self._model = model
        self._keeper: _Keeper | None = None

    def start(self) -> None:
        """Begins to keep batches, in a train function that is traced anew."""
        own = vars(self._model)
        if _KEEPER not in own:
            own[_KEEPER] = _Keeper(self._model)
            own[_KEEPER].start()
        own[_KEEPER].users.add(self)
        self._keeper = own[_KEEPER]

    def stop(self) -> None:
        """Ends it, if it has begun; the next function is traced anew."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.users.discard(self)
        if not keeper.users:
            keeper.stop()
            del vars(self._model)[_KEEPER]

    @property
    def batch(self) -> Any:
        """`(x, y, sample_weight)`.

        `None` before the first step, and where a `train_step` of the user's
        returns no dict.
        """
        return None if self._keeper is None else self._keeper.batch

    @property
    def loss_scale(self) -> float | None:
        """What the step multiplied the loss with; `None` if not known."""
        state = None if self._keeper is None else self._keeper.state
        return None if state is None else float(state[0])

    @property
    def found_inf(self) -> bool:
        """Whether a gradient of the step was inf or nan."""
        state = None if self._keeper is None else self._keeper.state
        return state is not None and bool(state[1])

    @property
    def functions(self) -> int:
        """How many train functions have been made: a new one traces anew."""
        return 0 if self._keeper is None else self._keeper.functions


_KEEPER = "_tf_mixprec_last_batch"
# In the logs of a step. All at one level: Keras takes them apart in each step.
_STATE = "tf_mixprec_state"
_TENSOR = "tf_mixprec_batch/{:04}"


class _Keeper:
    """Two methods of a model covered, and the batch that comes of it."""

    def __init__(self, model: Any):
        self._model = model
        self._undo: list[Callable[[], None]] = []
        self._structure: Any = None
        self._function: Any = None
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._data: Any = None
        # One tensor of the two numbers, or two; they wait on the device.
        self._state: tuple[Any, ...] = ()
        self.functions = 0
        # Weakly: a `fit` that ends with an exception stops nothing.
        self.users: weakref.WeakSet[LastBatch] = weakref.WeakSet()

    def start(self) -> None:
        """Covers the methods."""
        self._undo = [
            cover_method(self._model, "train_step", self._returning),
            cover_method(self._model, "make_train_function", self._making),
        ]
        self._model.make_train_function(force=True)

    def stop(self) -> None:
        """Gives them back."""
        while self._undo:
            self._undo.pop()()
        self._model.train_function = None
        self._tensors, self._data, self._state = [], None, ()

    def _returning(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train_step)
        def with_batch(data: Any) -> Any:
            before = _scale_of(self._model)
            logs = train_step(data)
            if not isinstance(logs, dict):
                return logs
            data = keras_internals.without_optionals(data)
            self._structure = keras.tree.map_structure(tf.is_tensor, data)
            leaves = keras.tree.flatten(data)
            tensors = [each for each in leaves if tf.is_tensor(each)]
            kept = {_TENSOR.format(i): each for i, each in enumerate(tensors)}
            self._names = list(kept)
            if before is not None:
                found_inf = ops.cast(self._model.optimizer.found_inf, "float32")
                kept[_STATE] = ops.stack([before, found_inf])
            return {**logs, **kept}

        return with_batch

    def _making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_train_function(force: bool = False) -> Any:
            make(force)
            function = self._model.train_function
            if function is not self._function:
                self._function = self._keeping(function)
                self.functions += 1
                self._model.train_function = self._function
            return self._function

        return make_train_function

    def _keeping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a train function that keeps what it was given."""
        is_step = step_behind(function) is not None

        def train_function(iterator: Any) -> Any:
            if not is_step:
                logs = function(iterator)
                kept = logs if type(logs) is dict else {}
                self._tensors = [
                    kept.pop(name) for name in self._names if name in kept
                ]
                self._state = (kept.pop(_STATE),) if _STATE in kept else ()
                return logs
            data, before = next(iterator), _scale_of(self._model)
            logs = function(iter((data,)))
            self._data = data
            if before is not None:
                # A variable, which stays as it is until the next step.
                self._state = before, self._model.optimizer.found_inf
            return logs

        train_function._tf_mixprec_inner = function  # type: ignore[attr-defined]
        return train_function

    @property
    def batch(self) -> Any:
        """`(x, y, sample_weight)`, or `None`."""
        data = self._data
        if self._tensors:
            left = iter(self._tensors)
            data = keras.tree.map_structure(
                lambda is_tensor: next(left) if is_tensor else None,
                self._structure,
            )
        if data is None:
            return None
        return keras.utils.unpack_x_y_sample_weight(data)

    @property
    def state(self) -> Any:
        """The loss scale before the step, and whether inf was found in it.

        Two numbers; `None` if there was no scale. Asking waits for the device,
        as Keras has before it calls callbacks.
        """
        if not self._state:
            return None
        numbers = [each.numpy() for each in self._state]
        return numbers[0] if len(numbers) == 1 else numbers


def _scale_of(model: Any) -> Any:
    """Returns a copy of the loss scale; `None` if the optimizer has none."""
    if not isinstance(model.optimizer, LossScaleOptimizer):
        return None
    return ops.copy(model.optimizer.loss_scale)


def shapes_of(batch: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors in a batch.

    Args:
        batch: Nested tensors and `None`.
    """
    return [
        tuple(each.shape)
        for each in keras.tree.flatten(batch)
        if each is not None
    ]
