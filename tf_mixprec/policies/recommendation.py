"""Which dtype policy the visible hardware gains from, and why."""

import dataclasses
from typing import Any

import keras

from tf_mixprec.policies import hardware
from tf_mixprec.policies import matrix_timing
from tf_mixprec.policies import policy_choice
from tf_mixprec.policies.device_argument import devices_meant


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A dtype policy for a device, and what it rests on.

    Args:
        policy: The `keras.DTypePolicy`: `float32`, `mixed_bfloat16` or
            `mixed_float16`.
        reason: String, one sentence.
        facts: Dict in JSON types, what is known of the device: `device`,
            `kind`, `name`, `float16_is_fast` and `float8_available`; of a GPU
            also `compute_capability`, as `[8, 0]`; of a CPU `cpu_features`
            and `onednn`. If measured, `matrix_size`, `milliseconds` and
            `speed_up` over float32. Where there were several GPUs to choose
            from, `gpus`. `None` is what could not be found out.

    Example:

    >>> recommendation = recommended_policy("CPU")
    >>> recommendation.facts["float16_is_fast"]
    False
    """

    policy: keras.DTypePolicy
    reason: str
    facts: dict[str, Any]


def recommended_policy(
    device: Any = None, *, measure: bool = False
) -> Recommendation:
    """Returns the dtype policy that a device gains most from, and why.

    ```text
    NVIDIA, compute capability 8.0 or higher            mixed_bfloat16
    NVIDIA, 7.0 to 7.5                                  mixed_float16
    CPU with AVX512-BF16 or AMX-BF16, and oneDNN on     mixed_bfloat16
    everything else                                     float32
    ```

    No device is started and no memory allocated, unless `measure` is true.

    Args:
        device: String such as `"GPU:0"`, `"/GPU:0"` or `"cpu"`, a
            `tf.config.PhysicalDevice` or a `tf.config.LogicalDevice`. A kind
            without a number means all visible devices of that kind, of which
            the weakest decides. Defaults to the visible GPUs, or the CPU
            where there is none.
        measure: Bool, whether to multiply matrices on the device for about
            two seconds, and to believe the times: 16 bits must be at least
            1.1 times as fast as float32, and float16 also 1.1 times as fast
            as bfloat16, which needs no loss scaling. float16 is never chosen
            on a CPU, where whole models are slower in it. Defaults to
            `False`.

    Raises:
        RuntimeError: If the Keras backend is not TensorFlow.
        TypeError: If `device` is no device.
        ValueError: If `device` is not visible to TensorFlow.

    Example:

    >>> recommendation = recommended_policy("CPU")
    >>> recommendation.policy.name in ("float32", "mixed_bfloat16")
    True
    >>> keras.config.set_dtype_policy(recommendation.policy)

    Reference:
        - [Compute capabilities](https://developer.nvidia.com/cuda-gpus)
    """
    check_backend()
    known = [(each, hardware.facts_of(each)) for each in devices_meant(device)]
    weakest, facts = min(known, key=lambda pair: _capability(pair[1]))
    choose = policy_choice.by_facts
    if measure:
        facts = {**facts, **_measured(weakest)}
        choose = policy_choice.by_times
    name, reason = choose(facts)
    if weakest.kind == "GPU" and len(known) > 1:
        facts = {**facts, "gpus": [_short(each) for _, each in known]}
    if len({tuple(_capability(each)) for _, each in known}) > 1:
        reason = f"Of {len(known)} different GPUs the weakest decides: {reason}"
    return Recommendation(keras.dtype_policies.get(name), reason, facts)


def check_backend() -> None:
    """Rejects other backends than TensorFlow, which knows the devices."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            "`recommended_policy` must run on the TensorFlow backend of Keras, "
            "because it asks TensorFlow for the devices; set "
            "KERAS_BACKEND=tensorflow before Keras is imported, or choose the "
            f"policy yourself. Received: keras.backend.backend()={backend!r}"
        )


def _capability(facts: dict[str, Any]) -> list[int]:
    """Returns what orders GPUs by what they can, unknown ones lowest."""
    return facts.get("compute_capability") or []


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: facts[name] for name in ("device", "name", "compute_capability")
    }


def _measured(device: hardware.Device) -> dict[str, Any]:
    size, milliseconds = matrix_timing.measure(device.name)
    return {
        "matrix_size": size,
        "milliseconds": milliseconds,
        "speed_up": {
            dtype: milliseconds["float32"] / each
            for dtype, each in milliseconds.items()
        },
    }
