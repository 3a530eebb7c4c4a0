"""From the facts of a device to the name of a policy and the reason. Pure."""

from typing import Any

LEAST_GAIN = 1.1  # times as fast; less is the noise of a measurement
NATIVE_BFLOAT16 = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
_KEEP_XLA_OFF = (
    "keep `jit_compile` off, because XLA on a CPU gains nothing from 16 bits"
)
_NEEDS_SCALING = "float16 needs loss scaling, so wrap the optimizer (`mp.wrap`)"
_MEASURE = "`measure=True` (`--measure`) tells whether it gains from bfloat16"


def by_facts(facts: dict[str, Any]) -> tuple[str, str]:
    """Returns the policy and the reason that follow from what a device is."""
    return _gpu(facts) if facts["kind"] == "GPU" else _cpu(facts)


def _gpu(facts: dict[str, Any]) -> tuple[str, str]:
    capability = facts["compute_capability"]
    if capability is None:
        return "float32", (
            f"{facts['name']} has no compute capability of NVIDIA, and of "
            "other GPUs TensorFlow does not say what they can; `measure=True` "
            "(`--measure`) tells whether it gains from 16 bits."
        )
    name = (
        f"{facts['name']} has compute capability "
        f"{'.'.join(str(number) for number in capability)}"
    )
    if capability < [7, 0]:
        return "float32", (
            f"{name}, and only from 7.0 on are there tensor cores, which "
            "multiply in 16 bits."
        )
    if capability < [8, 0]:
        return "mixed_float16", (
            f"{name}, whose tensor cores multiply float16 but not bfloat16; "
            f"{_NEEDS_SCALING}."
        )
    float8 = " (and float8)" if facts["float8_available"] else ""
    return "mixed_bfloat16", (
        f"{name}, whose tensor cores multiply bfloat16 as fast as float16"
        f"{float8}, and bfloat16 needs no loss scaling."
    )


def _cpu(facts: dict[str, Any]) -> tuple[str, str]:
    features = facts["cpu_features"]
    if features is None:
        return "float32", (
            "Which instructions this CPU has is not known, because only Linux "
            f"lists them; {_MEASURE}."
        )
    if "bf16" in features:
        return "float32", (
            "This ARM CPU has bfloat16 instructions, but it is not known "
            f"whether TensorFlow is faster with them; {_MEASURE}."
        )
    native = [NATIVE_BFLOAT16[x] for x in features if x in NATIVE_BFLOAT16]
    if not native:
        return "float32", (
            "This CPU has no instructions that multiply bfloat16, and float16 "
            "is slower than float32 on CPUs."
        )
    return _native_cpu(f"This CPU has {' and '.join(native)}", facts["onednn"])


def _native_cpu(has: str, onednn: bool | None) -> tuple[str, str]:
    """Returns the choice for a CPU that multiplies bfloat16."""
    if onednn is None:
        return "float32", (
            f"{has}, but this TensorFlow does not say whether oneDNN is on "
            f"and uses that; {_MEASURE}."
        )
    if not onednn:
        return "float32", (
            f"{has}, but oneDNN, which uses that, is off in TensorFlow; set "
            "TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow is imported."
        )
    return "mixed_bfloat16", (
        f"{has}, and oneDNN uses that; {_KEEP_XLA_OFF}, and leave float16 "
        "alone, which is slower than float32 on CPUs."
    )


def by_times(facts: dict[str, Any]) -> tuple[str, str]:
    """Returns the policy and the reason that follow from measured times."""
    on_cpu = facts["kind"] == "CPU"
    # bfloat16 first: float16 must gain as much again over it for the trouble
    # of loss scaling. On a CPU it is no candidate: its matrix product may be
    # fast, but whole models are 1.4 to 6.7 times as slow as in float32.
    fastest, gain = "float32", 1.0
    for dtype in ("bfloat16",) if on_cpu else ("bfloat16", "float16"):
        if facts["speed_up"][dtype] >= LEAST_GAIN * gain:
            fastest, gain = dtype, facts["speed_up"][dtype]
    if fastest == "float32":
        but_not = " (float16 never is on a CPU)" if on_cpu else ""
        return "float32", (
            f"{_measured(facts)}, and 16 bits must be {LEAST_GAIN} times as "
            f"fast as float32 to be worth it{but_not}."
        )
    advice = _NEEDS_SCALING if fastest == "float16" else ""
    if on_cpu:
        advice = _KEEP_XLA_OFF
    return f"mixed_{fastest}", (
        f"{_measured(facts)}, so {fastest} is {gain:.2f} times as fast as "
        f"float32{'; ' if advice else ''}{advice}."
    )


def _measured(facts: dict[str, Any]) -> str:
    size = facts["matrix_size"]
    times = ", ".join(
        f"{milliseconds:.3g} ms in {dtype}"
        for dtype, milliseconds in facts["milliseconds"].items()
    )
    return f"{facts['name']} multiplies {size} x {size} matrices: {times}"
