"""Replicas that sum with TensorFlow's collectives, in processes of their own.

Each step each replica has a gradient of 1 and the other of 3, so the sum is 4
and a step of SGD at 0.25 takes 1 from the weights, unless one has a NaN.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent / "collective_replica.py"
TIMEOUT = 150  # seconds; a worker that waits for another one hangs for ever


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start(strategy, **environment):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), strategy],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_workers(strategy):
    """Starts two worker processes that find each other on this machine."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    configs = [
        {
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": index},
        }
        for index in range(2)
    ]
    return [start(strategy, TF_CONFIG=json.dumps(c)) for c in configs]


def results(processes):
    """Returns what each process printed, and stops all if one fails."""
    try:
        outputs = [p.communicate(timeout=TIMEOUT) for p in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, stderr) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, stderr[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["one_process", "two_workers"])
def workers(request):
    """What each process of a strategy with two replicas has to say."""
    if request.param == "one_process":
        return results([start(request.param)])
    return results(start_workers(request.param))


def test_a_nan_on_one_replica_skips_the_step_on_all(workers):
    for worker in workers:
        assert worker["sgd"]["skipped"] == 1
        assert worker["sgd"]["scale"] == 4.0
        assert worker["sgd"]["iterations"] == 4
        for copy in worker["sgd"]["copies"]:
            assert copy == [1.0 - 4 * 1.0]
        assert worker["sgd"]["sent"] == ["float32"]


def test_the_same_in_a_branch_and_with_half_the_bytes(workers):
    for worker in workers:
        assert worker["branch"]["skipped"] == 2
        assert worker["branch"]["scale"] == 2.0
        for copy in worker["branch"]["copies"]:
            assert copy == [1.0 - 3 * 1.0]
        assert worker["branch"]["sent"] == ["bfloat16"]


def test_accumulation_averages_over_the_good_micro_batches(workers):
    for worker in workers:
        assert worker["accumulation"]["skipped"] == 1
        assert worker["accumulation"]["iterations"] == 2
        for copy in worker["accumulation"]["copies"]:
            assert copy == [1.0 - 2 * 1.0]
        assert worker["accumulation"]["sent"] == ["float16"]


def test_the_sum_is_clipped_and_not_the_summands(workers):
    """The norm of the sum is twice the limit: each step takes one half."""
    for worker in workers:
        assert worker["clipped"]["skipped"] == 1
        for copy in worker["clipped"]["copies"]:
            assert copy == pytest.approx([1.0 - 4 * 0.5], rel=1e-6)


def test_a_compiled_function_around_a_step_is_refused(workers):
    for worker in workers:
        assert "must not be combined" in worker["refused"]
        assert "jit_compile=False" in worker["refused"]
