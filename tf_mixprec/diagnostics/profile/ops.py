"""How long operations take, where `tf.profiler` says so."""

import collections
import pathlib
import re
import tempfile
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras

from tf_mixprec.diagnostics.profile.records import OpTimes

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_STEPS = 3
_EVENT = re.compile(r"([\w./-]+):_?(?:Mkl)?([A-Z]\w*)")  # node and operation
_HOST = "/host:CPU"
_ON_A_GPU = "/device:GPU"


def op_times(
    call: Callable[[], Any], dtypes: Mapping[str, str]
) -> OpTimes | None:
    """Returns what operations take; `None` where that cannot be known.

    It cannot on GPUs, where the processor only starts operations, nor under
    XLA, where there are none; nor while another profiler runs.

    Args:
        call: Makes a step.
        dtypes: By name of an operation, its dtype.
    """
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError:  # where it is has no promise
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tf.profiler.experimental.Profile(folder):
                for _ in range(_STEPS):
                    call()
                tf.test.experimental.sync_devices()
        except tf.errors.OpError:
            return None
        paths = list(pathlib.Path(folder).rglob("*.xplane.pb"))
        if len(paths) != 1:
            return None
        space = xplane_pb2.XSpace.FromString(paths[0].read_bytes())
    if any(plane.name.startswith(_ON_A_GPU) for plane in space.planes):
        return None
    return summed(_events(space), dtypes, _STEPS)


def summed(
    events: Iterable[tuple[str, float]], dtypes: Mapping[str, str], steps: int
) -> OpTimes | None:
    """Returns the times of events by dtype, a step; `None` without events.

    Args:
        events: Name and milliseconds: names of operations are those of a node
            and its type, `dense/MatMul:MatMul`.
        dtypes: By name of a node, its dtype.
        steps: How many steps they are of.
    """
    by_dtype: dict[str, float] = collections.defaultdict(float)
    casts = 0.0
    for name, milliseconds in events:
        match = _EVENT.fullmatch(name)
        if match is None:
            continue
        node, op_type = match.groups()
        by_dtype[_dtype_of(node, dtypes)] += milliseconds / steps
        casts += milliseconds / steps if op_type == "Cast" else 0.0
    total = sum(by_dtype.values())
    if not total:
        return None
    return OpTimes(milliseconds=dict(by_dtype), cast_share=casts / total)


def _dtype_of(node: str, dtypes: Mapping[str, str]) -> str:
    """Returns the dtype of a node, under the names it is called by.

    Where a function is inlined the names of calls come before its own.
    """
    while node:
        if node in dtypes:
            return dtypes[node]
        _, _, node = node.partition("/")
    return "other"


def _events(space: Any) -> Iterator[tuple[str, float]]:
    for plane in space.planes:
        if plane.name != _HOST:
            continue
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                yield name, event.duration_ps / 1e9
