"""Tests for `tf-mixprec devices`."""

import json
import os
import shutil
import subprocess
import sys

import keras
import machines
import pytest

from tf_mixprec.cli import main as command

REPORT = """\
GPU:0  NVIDIA H200
  policy               mixed_bfloat16
  reason               NVIDIA H200 has compute capability 9.0, whose tensor
                       cores multiply bfloat16 as fast as float16 (and float8),
                       and bfloat16 needs no loss scaling.
  compute capability   9.0
  float16 is fast      yes
  float8 available     yes

CPU:0  A Xeon
  policy               mixed_bfloat16
  reason               This CPU has AVX512-BF16 and AMX-BF16, and oneDNN uses
                       that; keep `jit_compile` off, because XLA on a CPU gains
                       nothing from 16 bits, and leave float16 alone, which is
                       slower than float32 on CPUs.
  16-bit instructions  avx512_bf16, amx_bf16
  oneDNN is on         yes
  float16 is fast      no
  float8 available     no
"""


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    return lambda **machine: machines.pretend(monkeypatch, tmp_path, **machine)


def test_the_report_is_readable(pretend, capsys):
    pretend(gpus=[machines.H200])
    assert command.main(["devices"]) == 0
    assert capsys.readouterr().out == REPORT


def test_the_report_says_what_is_not_known(pretend, capsys):
    pretend(gpus=[machines.RADEON], cpu=None, onednn=None)
    assert command.main(["devices"]) == 0
    lines = [" ".join(x.split()) for x in capsys.readouterr().out.splitlines()]
    assert "compute capability not known" in lines
    assert "16-bit instructions not known" in lines
    assert "oneDNN is on not known" in lines
    pretend(cpu=machines.OLD_PC)
    assert command.main(["devices"]) == 0
    assert "16-bit instructions  none\n" in capsys.readouterr().out


def test_gpus_that_differ_get_a_word_together(pretend, capsys):
    pretend(gpus=[machines.A100, machines.V100])
    assert command.main(["devices"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        "GPU:0  NVIDIA A100",
        "GPU:1  Tesla V100",
        "all GPUs together",
        "CPU:0  A Xeon",
    ]
    assert "mixed_float16" in blocks[2]
    assert "the weakest decides" in " ".join(blocks[2].split())


@pytest.mark.parametrize(
    ("gpus", "parts"),
    [([machines.A100, machines.A100], 1), ([machines.A100], 2)],
)
def test_equal_gpus_and_parts_of_one_get_none(pretend, capsys, gpus, parts):
    pretend(gpus=gpus, parts=parts)
    assert command.main(["devices", "--json"]) == 0
    names = [each["device"] for each in json.loads(capsys.readouterr().out)]
    assert len(names) == len(gpus) + 1
    assert "GPU" not in names


def test_json_has_everything(pretend, capsys):
    pretend(gpus=[machines.H200])
    assert command.main(["devices", "--json"]) == 0
    gpu, cpu = json.loads(capsys.readouterr().out)
    assert list(gpu) == ["device", "policy", "reason", "facts"]
    assert (gpu["device"], gpu["policy"]) == ("GPU:0", "mixed_bfloat16")
    assert gpu["facts"]["compute_capability"] == [9, 0]
    assert (cpu["device"], cpu["policy"]) == ("CPU:0", "mixed_bfloat16")
    assert cpu["facts"]["cpu_features"] == ["avx512_bf16", "amx_bf16"]


def test_measuring_is_asked_for(pretend, monkeypatch, capsys):
    pretend(gpus=[machines.H200])
    measured = machines.pretend_times(monkeypatch, 30.0, 20.0, 40.0)
    assert command.main(["devices"]) == 0
    assert measured == []
    assert "milliseconds" not in capsys.readouterr().out
    assert command.main(["devices", "--measure"]) == 0
    assert measured == ["GPU:0", "CPU:0"]
    out = " ".join(capsys.readouterr().out.split())
    assert "milliseconds float32 30, bfloat16 20, float16 40" in out
    assert "speed-up float32 1, bfloat16 1.5, float16 0.75" in out


def test_another_backend_is_said_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert command.main(["devices"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "set KERAS_BACKEND=tensorflow" in captured.err


@pytest.mark.slow
def test_this_machine_is_reported_without_noise():
    program = shutil.which("tf-mixprec", path=os.path.dirname(sys.executable))
    result = subprocess.run(
        [program, "devices", "--json"],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)[-1]["device"] == "CPU:0"
