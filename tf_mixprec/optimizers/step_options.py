"""What the trace of a step depends on, and so cannot change afterwards."""

import dataclasses
from typing import Any

_ALL_REDUCE_DTYPES = (None, "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step is traced.

    Args:
        skip_nonfinite: Whether a step with inf or nan is skipped.
        jit_compile: Whether XLA compiles the update; `"auto"` decides by the
            gradients and the optimizer.
        all_reduce_dtype: The dtype in which gradients travel between replicas;
            `None` for their own.
    """

    skip_nonfinite: bool = True
    jit_compile: bool | str = "auto"
    all_reduce_dtype: str | None = None

    def __post_init__(self) -> None:
        """Rejects what is not one of the choices."""
        if not isinstance(self.skip_nonfinite, bool):
            raise TypeError(
                "`skip_nonfinite` must be True or False, because it chooses "
                "what is traced. Received: "
                f"skip_nonfinite={self.skip_nonfinite!r}"
            )
        if self.jit_compile not in (True, False, "auto") or (
            not isinstance(self.jit_compile, (bool, str))
        ):
            raise ValueError(
                "`jit_compile` must be True, False or 'auto', because it says "
                "whether XLA compiles the update. Received: "
                f"jit_compile={self.jit_compile!r}"
            )
        if self.all_reduce_dtype not in _ALL_REDUCE_DTYPES:
            raise ValueError(
                "`all_reduce_dtype` must be None, 'float32', 'float16' or "
                "'bfloat16', because gradients are summed over replicas in "
                f"it. Received: all_reduce_dtype={self.all_reduce_dtype!r}"
            )


class TracedOption:
    """A field of an optimizer's `StepOptions`, as an attribute to read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        return getattr(optimizer._options, self._name)

    def __set__(self, optimizer: Any, value: Any) -> None:
        raise AttributeError(
            f"`{self._name}` must be given to the constructor, because the "
            f"steps are traced with it. Received: {self._name}={value!r}"
        )
