"""`mp.autocast`: the operations of a function in 16 bits where that is safe."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras

from tf_mixprec.autocast import kernels
from tf_mixprec.autocast import op_lists
from tf_mixprec.autocast import regions
from tf_mixprec.autocast.plan import Target
from tf_mixprec.autocast.rewrite import Rewriting
from tf_mixprec.autocast.rewrite import rewriting_of
from tf_mixprec.autocast.rewrite import rewritten
from tf_mixprec.policies import recommended_policy

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

DTYPES = ("bfloat16", "float16")
CHOICES = (*DTYPES, "float32", "auto")


class AutocastFunction:
    """A function whose operations run in 16 bits where that is safe.

    `mp.autocast` makes it. It is called like the function, and like a
    `tf.function` it traces it for each kind of input.

    Args:
        function: The function.
        dtype: `"float16"`, `"bfloat16"` or `"auto"`.
        lists: An `mp.op_lists.OpLists`.
        input_signature: What `tf.function` takes; `None` for none.
    """

    def __init__(
        self,
        function: Callable,
        dtype: str,
        lists: op_lists.OpLists,
        input_signature: Any,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.python_function = function
        self._dtype = dtype
        self.lists = lists
        self.input_signature = input_signature
        self._bound: weakref.WeakKeyDictionary[Any, AutocastFunction] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        name = getattr(self.python_function, "__name__", self.python_function)
        return f"<AutocastFunction {name} in {self._dtype}>"

    @functools.cached_property
    def dtype(self) -> str:
        """The 16-bit dtype; `"float32"` where the device gains from none."""
        return resolved(self._dtype)

    @functools.cached_property
    def _traced(self) -> Any:
        """The `tf.function` that does the work."""
        target = Target(
            tf.as_dtype(self.dtype), self.lists, kernels.device_kind()
        )

        def autocast_function(*args: Any, **kwargs: Any) -> Any:
            return rewritten(self.python_function, target, args, kwargs)

        name = getattr(self.python_function, "__name__", "autocast")
        autocast_function.__name__ = autocast_function.__qualname__ = name
        autocast_function.__signature__ = _signature(  # type: ignore[attr-defined]
            self.python_function
        )
        return tf.function(
            tf.autograph.experimental.do_not_convert(autocast_function),
            input_signature=self.input_signature,
        )

    @property
    def is_off(self) -> bool:
        """Whether the function is called as it is."""
        return self.dtype not in DTYPES

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.
        """
        # An autocast around this one leaves what it has decided.
        with regions.as_written():
            # Functions run eagerly to be debugged, and then have no graph.
            if self.is_off or tf.config.functions_run_eagerly():
                return self.python_function(*args, **kwargs)
            return self._traced(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds a method to its object, which it does not keep alive."""
        if instance is None:
            return self
        try:
            bound = self._bound.get(instance)
        except TypeError:  # not hashable
            return functools.partial(self, instance)
        if bound is None:
            bound = self._bound[instance] = AutocastFunction(
                _weakly_bound(self.python_function, instance, owner),
                self._dtype,
                self.lists,
                self.input_signature,
            )
        return BoundAutocastFunction(bound, instance)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the `ConcreteFunction` for some arguments.

        Args:
            *args: Positional arguments, or `tf.TensorSpec`s for them.
            **kwargs: Keyword arguments, or `tf.TensorSpec`s for them.

        Raises:
            ValueError: If autocast is off, for nothing is traced then.
        """
        if self.is_off:
            raise ValueError(
                "Autocast must be on for there to be a traced function; use "
                "`tf.function` of the function itself. Received: dtype="
                f"{self._dtype!r}, which is {self.dtype!r} here"
            )
        return self._traced.get_concrete_function(*args, **kwargs)

    def rewriting(self, *args: Any, **kwargs: Any) -> Rewriting:
        """Returns what is done to the function for some arguments."""
        concrete = self.get_concrete_function(*args, **kwargs)
        found = rewriting_of(concrete.graph)
        assert found is not None  # noqa: S101  it was traced
        return found


class BoundAutocastFunction:
    """A method under autocast, of an object that it keeps alive.

    It is otherwise the `AutocastFunction` of that object.

    Args:
        function: The `AutocastFunction`.
        instance: The object.
    """

    def __init__(self, function: AutocastFunction, instance: Any) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method."""
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _Decorator:
    """`mp.autocast` without a function yet.

    Args:
        options: Its arguments.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __call__(self, function: Callable) -> Any:
        """Returns the function under autocast."""
        return autocast(function, **self._options)

    def __enter__(self) -> None:
        raise TypeError(
            "`mp.autocast` must be given a function, because it rewrites what "
            "that traces, and a block of code is not traced; make a function "
            "of the block, and decorate it with `@mp.autocast(...)`. Received: "
            "a `with` statement"
        )

    def __exit__(self, *_: Any) -> None:
        """Is never reached; `with` asks for it."""


def _weakly_bound(function: Callable, instance: Any, owner: Any) -> Callable:
    """Returns a method that does not keep its object alive."""
    reference = weakref.ref(instance)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return function.__get__(reference(), owner)(*args, **kwargs)

    method.__signature__ = _signature(  # type: ignore[attr-defined]
        function.__get__(instance, owner)
    )
    del method.__wrapped__
    return method


def autocast(
    function: Callable | None = None,
    dtype: str = "auto",
    *,
    lists: op_lists.OpLists = op_lists.DEFAULT,
    input_signature: Any = None,
) -> Any:
    """Runs the operations of a function in 16 bits, where that is safe.

    ```text
    matrix products, convolutions    in 16 bits: their inputs are cast
    exp, log, softmax, losses, sums  in float32: their inputs are cast back
    add, multiply, tanh, concat      in the widest dtype of their inputs;
                                     parameters follow the other inputs
    reshape, gather, relu, max       as their inputs are
    any other                        as it is, and reported
    ```

    For raw TensorFlow and for models in float32; a Keras model in a dtype
    policy of 16 bits needs none. Structure and dtypes of what the function
    returns stay, and its variables. The function is traced like one of
    `tf.function`, whose rules hold; its graph is rewritten, and TensorFlow
    differentiates what that makes. So it works in eager code, in a
    `tf.function`, compiled by XLA and under a `tf.GradientTape`, and goes into
    conditions, loops and functions that it calls. float16 gradients need a
    loss scale: `mp.wrap`.

    - A variable that the function does not write is read and cast once, in
      front of loops; its gradient is summed over the turns in float32.
    - What a loop carries from turn to turn, and elements of a `TensorArray`,
      are float32.
    - A constant that 16 bits do not hold makes what it is added to float32: a
      scalar that would become infinite or 0, an array that would be rounded.
    - `tf.cast(x, tf.float32)` is nothing in a function in float32, and so does
      not make anything float32; `mp.full_precision` does.
    - The functions of `tf.custom_gradient` are rewritten as well.

    It is also a decorator, with or without arguments, of methods too. To be
    saved with a `tf.Module` it needs a `tf.function` around it. Where functions
    run eagerly (`tf.config.run_functions_eagerly`) it is the function itself.

    Args:
        function: A Python function, a `tf.function` or a Keras model.
        dtype: `"bfloat16"`, `"float16"`, `"float32"`, which turns autocast off
            for this function, also within another one, and traces nothing; or
            `"auto"`, for what `mp.recommended_policy` computes in. Defaults to
            `"auto"`.
        lists: What becomes of each op, such as
            `mp.op_lists.DEFAULT.low("MyOp")`.
        input_signature: As in `tf.function`. Defaults to that of a
            `tf.function`, or none.

    Returns:
        A function to be called like `function`.

    Raises:
        TypeError: If `function` cannot be called, or if `dtype` is no string
            or `lists` no `OpLists`.
        ValueError: If `dtype` is none of these, or if an op in `lists` is
            unknown.
        RuntimeError: If the Keras backend is not TensorFlow.

    Example:

    >>> import tensorflow as tf
    >>> import tf_mixprec as mp
    >>> weight = tf.Variable(tf.ones((4, 2)))
    >>> @mp.autocast(dtype="bfloat16")
    ... def loss(x):
    ...     return tf.reduce_mean(tf.nn.softmax(tf.matmul(x, weight)))
    >>> with tf.GradientTape() as tape:
    ...     value = loss(tf.ones((3, 4)))
    >>> value.dtype.name, tape.gradient(value, weight).dtype.name
    ('float32', 'float32')

    Reference:
        - [PyTorch's autocast](https://pytorch.org/docs/stable/amp.html)
    """
    check_backend()
    _check_dtype(dtype)
    if not isinstance(lists, op_lists.OpLists):
        raise TypeError(
            "`lists` must be an `OpLists`, made from `mp.op_lists.DEFAULT` by "
            "its methods `low`, `full`, `widest` and `neutral`. Received: "
            f"lists={lists!r}"
        )
    op_lists.check_ops(lists)
    if function is None:
        return _Decorator(
            {
                "dtype": dtype,
                "lists": lists,
                "input_signature": input_signature,
            }
        )
    regions.check_callable(function)
    if input_signature is None:
        input_signature = getattr(function, "input_signature", None)
    if dtype == "float32":
        return regions.full_precision(function)
    return AutocastFunction(function, dtype, lists, input_signature)


def resolved(dtype: str) -> str:
    """Returns the dtype that one of `CHOICES` means on this machine.

    Args:
        dtype: The choice.
    """
    if dtype != "auto":
        return dtype
    return recommended_policy().policy.compute_dtype


def check_backend() -> None:
    """Rejects other backends than TensorFlow, whose graphs are rewritten."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            "`mp.autocast` must be used with the TensorFlow backend of Keras, "
            "because it rewrites TensorFlow's graphs; set "
            "KERAS_BACKEND=tensorflow before Keras is imported. Received: "
            f"keras.backend.backend()={backend!r}"
        )


def _check_dtype(dtype: Any) -> None:
    """Rejects what autocast cannot compute in."""
    if not isinstance(dtype, str):
        raise TypeError(
            "`dtype` must be the name of a dtype, a string such as "
            f'"bfloat16". Received: dtype={dtype!r}'
        )
    if dtype not in CHOICES:
        raise ValueError(
            "`dtype` must be 'bfloat16', 'float16', 'float32' (off) or 'auto', "
            "because autocast computes in a 16-bit float. Received: "
            f"dtype={dtype!r}"
        )


def _signature(function: Callable) -> inspect.Signature:
    """Returns the signature of a function, or one that takes anything."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)
