"""Tests for `tf_mixprec.policies.recommended_policy`."""

import dataclasses
import doctest
import json
import os
import subprocess
import sys

import keras
import machines
import pytest
import tensorflow as tf

from tf_mixprec.policies import Recommendation
from tf_mixprec.policies import matrix_timing
from tf_mixprec.policies import recommendation
from tf_mixprec.policies import recommended_policy

CPU_INFO = "model name : A CPU\nflags : fpu {}\n"


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    return lambda **machine: machines.pretend(monkeypatch, tmp_path, **machine)


@pytest.fixture
def times(monkeypatch):
    return lambda *each: machines.pretend_times(monkeypatch, *each)


@pytest.mark.parametrize(
    ("capability", "policy", "float16_is_fast", "float8_available"),
    [
        pytest.param((3, 5), "float32", False, False, id="Kepler"),
        pytest.param((6, 1), "float32", False, False, id="Pascal"),
        pytest.param((7, 0), "mixed_float16", True, False, id="Volta"),
        pytest.param((7, 5), "mixed_float16", True, False, id="Turing"),
        pytest.param((8, 0), "mixed_bfloat16", True, False, id="A100"),
        pytest.param((8, 6), "mixed_bfloat16", True, False, id="Ampere"),
        pytest.param((8, 9), "mixed_bfloat16", True, True, id="Ada"),
        pytest.param((9, 0), "mixed_bfloat16", True, True, id="Hopper"),
        pytest.param((10, 0), "mixed_bfloat16", True, True, id="Blackwell"),
        pytest.param((12, 1), "mixed_bfloat16", True, True, id="GB10"),
    ],
)
def test_an_nvidia_gpu_is_judged_by_its_compute_capability(
    pretend, capability, policy, float16_is_fast, float8_available
):
    details = {"device_name": "A GPU", "compute_capability": capability}
    pretend(gpus=[details])
    found = recommended_policy()
    assert found.policy == keras.dtype_policies.get(policy)
    assert found.facts == {
        "device": "GPU:0",
        "kind": "GPU",
        "name": "A GPU",
        "compute_capability": list(capability),
        "float16_is_fast": float16_is_fast,
        "float8_available": float8_available,
    }
    version = ".".join(map(str, capability))
    assert f"A GPU has compute capability {version}" in found.reason
    assert ("float8" in found.reason) == float8_available
    assert ("`mp.wrap`" in found.reason) == (policy == "mixed_float16")


@pytest.mark.parametrize(
    ("details", "name"), [(machines.RADEON, "AMD Radeon"), ({}, "GPU:0")]
)
def test_what_other_gpus_gain_is_left_to_measuring(pretend, details, name):
    pretend(gpus=[details])
    found = recommended_policy()
    assert found.policy.name == "float32"
    assert found.reason.startswith(f"{name} has no compute capability")
    assert "`measure=True` (`--measure`)" in found.reason
    assert found.facts["compute_capability"] is None
    assert found.facts["float16_is_fast"] is None
    assert found.facts["float8_available"] is None


@pytest.mark.parametrize(
    ("flags", "onednn", "policy", "said"),
    [
        pytest.param(
            "avx512_bf16",
            True,
            "mixed_bfloat16",
            "has AVX512-BF16, and oneDNN uses that; keep `jit_compile` off",
            id="AVX512",
        ),
        pytest.param(
            "amx_fp16 amx_bf16",
            True,
            "mixed_bfloat16",
            "has AMX-BF16, and",
            id="AMX",
        ),
        pytest.param(
            "amx_bf16 avx512_bf16",
            True,
            "mixed_bfloat16",
            "has AVX512-BF16 and AMX-BF16, and",
            id="both",
        ),
        pytest.param(
            "avx512_bf16",
            False,
            "float32",
            "set TF_ENABLE_ONEDNN_OPTS=1 before",
            id="oneDNN off",
        ),
        pytest.param(
            "avx512_bf16",
            None,
            "float32",
            "does not say whether oneDNN is on",
            id="oneDNN not known",
        ),
        pytest.param(
            "avx512f avx512_bf16x avx512_fp16",
            True,
            "float32",
            "has no instructions that multiply bfloat16",
            id="neither",
        ),
    ],
)
def test_a_cpu_is_judged_by_its_instructions_and_onednn(
    pretend, flags, onednn, policy, said
):
    pretend(cpu=CPU_INFO.format(flags), onednn=onednn)
    found = recommended_policy()
    assert found.policy == keras.dtype_policies.get(policy)
    assert said in found.reason
    features = found.facts.pop("cpu_features")
    assert set(features) == {"avx512_bf16", "amx_bf16", "amx_fp16"} & set(
        flags.split()
    )
    assert found.facts == {
        "device": "CPU:0",
        "kind": "CPU",
        "name": "A CPU",
        "onednn": onednn,
        "float16_is_fast": False,
        "float8_available": False,
    }


@pytest.mark.parametrize(
    ("cpu", "features", "said"),
    [
        pytest.param(None, None, "only Linux lists them", id="no Linux"),
        pytest.param("isa : rv64\n", None, "only Linux", id="RISC-V"),
        pytest.param(machines.NEOVERSE, ["bf16"], "This ARM CPU", id="ARM"),
    ],
)
def test_what_other_cpus_gain_is_left_to_measuring(
    pretend, cpu, features, said
):
    pretend(cpu=cpu)
    found = recommended_policy()
    assert found.policy.name == "float32"
    assert said in found.reason
    assert "`measure=True` (`--measure`)" in found.reason
    assert found.facts["cpu_features"] == features
    assert found.facts["name"]


def test_the_weakest_of_several_gpus_decides(pretend):
    pretend(gpus=[machines.H200, machines.V100, machines.A100])
    found = recommended_policy()
    assert found.policy.name == "mixed_float16"
    assert found.reason.startswith(
        "Of 3 different GPUs the weakest decides: Tesla V100 has"
    )
    assert found.facts["device"] == "GPU:1"
    assert [tuple(gpu.values()) for gpu in found.facts["gpus"]] == [
        ("GPU:0", "NVIDIA H200", [9, 0]),
        ("GPU:1", "Tesla V100", [7, 0]),
        ("GPU:2", "NVIDIA A100", [8, 0]),
    ]
    assert recommended_policy("gpu") == found
    assert recommended_policy("GPU:2").policy.name == "mixed_bfloat16"


def test_a_gpu_of_unknown_kind_is_the_weakest(pretend):
    pretend(gpus=[machines.V100, machines.RADEON])
    assert recommended_policy().facts["name"] == "AMD Radeon"


def test_equal_gpus_are_not_called_different(pretend):
    pretend(gpus=[machines.A100, machines.A100])
    found = recommended_policy()
    assert found.reason.startswith("NVIDIA A100 has")
    assert len(found.facts["gpus"]) == 2


@pytest.mark.parametrize(
    "device",
    [
        "GPU:2",
        "gpu:2",
        "/GPU:2",
        "/device:GPU:2",
        "/job:localhost/replica:0/task:0/device:GPU:2",
        "/physical_device:GPU:1",
        tf.config.PhysicalDevice("/physical_device:GPU:1", "GPU"),
        tf.config.LogicalDevice("/device:GPU:2", "GPU"),
    ],
)
def test_a_device_may_be_named_in_every_way_of_tensorflow(pretend, device):
    # Each in two parts: `GPU:2` is the first half of the second one.
    pretend(gpus=[machines.A100, machines.V100], parts=2)
    found = recommended_policy(device)
    assert found.facts["name"] == "Tesla V100"
    assert found.facts["device"] == "GPU:2"
    assert "gpus" not in found.facts


@pytest.mark.parametrize("device", ["cpu", "CPU:0", "/CPU:0"])
def test_the_cpu_may_be_asked_for_beside_a_gpu(pretend, device):
    pretend(gpus=[machines.A100])
    assert recommended_policy(device).facts["name"] == "A Xeon"


def test_the_parts_of_one_gpu_are_one_gpu(pretend):
    pretend(gpus=[machines.A100], parts=2)
    found = recommended_policy()
    assert found.facts["device"] == "GPU:0"
    assert "gpus" not in found.facts


@pytest.mark.parametrize("device", [0, 1.5, ["GPU:0"], object()])
def test_what_is_no_device_is_refused(pretend, device):
    pretend()
    with pytest.raises(
        TypeError, match="must be a string, a `tf.config.Phys"
    ) as e:
        recommended_policy(device)
    assert str(e.value).endswith(f"Received: device={device!r}")


@pytest.mark.parametrize(
    "device",
    [
        "",
        "TPU:0",
        "GPU:",
        "GPU:-1",
        "xGPU:0",
        "/job:worker/task:1/device:GPU:0",
    ],
)
def test_what_names_no_cpu_or_gpu_is_refused(pretend, device):
    pretend()
    with pytest.raises(
        ValueError, match="must name a CPU or a GPU of this"
    ) as e:
        recommended_policy(device)
    assert str(e.value).endswith(f"Received: device={device!r}")


@pytest.mark.parametrize(
    "device",
    [
        "GPU:1",
        "CPU:1",
        "/physical_device:GPU:1",
        tf.config.PhysicalDevice("/physical_device:GPU:1", "GPU"),
        tf.config.LogicalDevice("/device:GPU:1", "GPU"),
    ],
)
def test_a_device_that_is_not_visible_is_refused(pretend, device):
    pretend(gpus=[machines.A100])
    with pytest.raises(ValueError, match="must be visible to TensorFlow") as e:
        recommended_policy(device)
    assert "visible are CPU:0, GPU:0. Received: device=" in str(e.value)


def test_a_kind_of_which_there_is_none_is_refused(pretend):
    pretend()
    with pytest.raises(ValueError, match="visible are CPU:0. Received"):
        recommended_policy("gpu")


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="must run on the TensorFlow") as e:
        recommended_policy()
    assert "set KERAS_BACKEND=tensorflow" in str(e.value)
    assert str(e.value).endswith("Received: keras.backend.backend()='jax'")


@pytest.mark.parametrize(
    ("milliseconds", "policy", "said"),
    [
        pytest.param(
            (11.0, 9.9, 20.0),
            "mixed_bfloat16",
            "so bfloat16 is 1.11 times as fast as float32.",
            id="bfloat16",
        ),
        pytest.param(
            (10.0, 9.5, 5.0),
            "mixed_float16",
            "so float16 is 2.00 times as fast as float32; float16 needs loss",
            id="float16",
        ),
        pytest.param(
            (10.0, 5.0, 4.0),
            "mixed_float16",
            "so float16 is 2.50 times as fast",
            id="float16 clearly",
        ),
        pytest.param(
            (10.0, 5.0, 4.9),
            "mixed_bfloat16",
            "so bfloat16 is 2.00 times as fast",
            id="float16 hardly",
        ),
        pytest.param(
            (10.0, 9.5, 9.4),
            "float32",
            "16 bits must be 1.1 times as fast as float32 to be worth it.",
            id="neither",
        ),
    ],
)
@pytest.mark.parametrize("gpu", [machines.H200, machines.RADEON])
def test_measured_times_decide(pretend, times, gpu, milliseconds, policy, said):
    pretend(gpus=[gpu])
    measured = times(*milliseconds)
    found = recommended_policy(measure=True)
    assert measured == ["GPU:0"]
    assert found.policy == keras.dtype_policies.get(policy)
    assert found.reason.endswith(said) or "float16" in policy
    assert said in found.reason
    assert "multiplies 1024 x 1024 matrices: 1" in found.reason
    facts = found.facts
    assert facts["matrix_size"] == 1024
    assert tuple(facts["milliseconds"].values()) == milliseconds
    assert facts["speed_up"] == {
        "float32": 1.0,
        "bfloat16": milliseconds[0] / milliseconds[1],
        "float16": milliseconds[0] / milliseconds[2],
    }


@pytest.mark.parametrize(
    ("milliseconds", "policy", "said"),
    [
        (
            (10.0, 5.0, 1.0),
            "mixed_bfloat16",
            "; keep `jit_compile` off, because",
        ),
        ((10.0, 9.9, 1.0), "float32", "(float16 never is on a CPU)."),
    ],
)
@pytest.mark.parametrize("cpu", [machines.XEON, machines.OLD_PC, None])
def test_float16_is_not_believed_on_a_cpu(
    pretend, times, cpu, milliseconds, policy, said
):
    pretend(cpu=cpu)
    assert times(*milliseconds) == []
    found = recommended_policy(measure=True)
    assert found.policy.name == policy
    assert said in found.reason


def test_of_several_gpus_the_weakest_is_measured(pretend, times):
    pretend(gpus=[machines.A100, machines.V100])
    measured = times(10.0, 20.0, 2.0)
    found = recommended_policy(measure=True)
    assert measured == ["GPU:1"]
    assert found.policy.name == "mixed_float16"
    assert "the weakest decides: Tesla V100 multiplies" in found.reason
    assert len(found.facts["gpus"]) == 2


def test_a_product_is_measured_on_this_machine(monkeypatch):
    monkeypatch.setattr(matrix_timing, "SIZES", (64, 128))
    monkeypatch.setattr(matrix_timing, "LEAST_MILLISECONDS", float("inf"))
    size, milliseconds = matrix_timing.measure("CPU:0", seconds=0.01)
    assert size == 128
    assert list(milliseconds) == ["float32", "bfloat16", "float16"]
    assert all(0.0 < each < 1e4 for each in milliseconds.values())


def test_measuring_leaves_the_random_numbers_of_the_program(monkeypatch):
    monkeypatch.setattr(matrix_timing, "SIZES", (64,))
    tf.random.set_seed(1)
    expected = tf.random.normal((3,)).numpy()
    tf.random.set_seed(1)
    matrix_timing.measure("CPU:0", seconds=0.0)
    assert (tf.random.normal((3,)).numpy() == expected).all()


def test_the_matrix_is_no_larger_than_it_needs_to_be(monkeypatch):
    monkeypatch.setattr(matrix_timing, "SIZES", (64, 128))
    monkeypatch.setattr(matrix_timing, "LEAST_MILLISECONDS", 0.0)
    assert matrix_timing.measure("CPU:0", seconds=0.0).size == 64


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("gpus", [[], [machines.A100, machines.V100]])
def test_facts_are_json(pretend, times, gpus, measure):
    pretend(gpus=gpus)
    times(3.0, 2.0, 1.0)
    facts = recommended_policy(measure=measure).facts
    assert json.loads(json.dumps(facts)) == facts


def test_a_recommendation_does_not_change(pretend):
    pretend()
    found = recommended_policy()
    assert isinstance(found, Recommendation)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.reason = "another"


def test_the_examples_run():
    failures, count = doctest.testmod(recommendation)
    assert (failures, count) == (0, 5)


NO_DEVICE_IS_STARTED = """
import tensorflow as tf
from tf_mixprec.policies import recommended_policy

cpu = tf.config.list_physical_devices("CPU")[0]
for device in (None, "cpu", "CPU:0", cpu):
    facts = recommended_policy(device).facts
print(recommended_policy("cpu").facts["onednn"])
# Raises a RuntimeError once the devices are initialized.
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
"""


def test_no_device_is_started_and_onednn_follows_its_variable():
    result = subprocess.run(
        [sys.executable, "-c", NO_DEVICE_IS_STARTED],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False\n"
