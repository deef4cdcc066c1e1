"""Small traces written by hand, whose answers can be worked out in the head."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.columns import Trace
from paceline.diagnose.trace.reading import read

Made = dict[str, Any]

MAIN, OTHER, STREAM, TALK = 1, 2, 7, 20


def event(cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: object) -> Made:
    pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_memset") else 100
    made = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return made | {"args": args}


def kernel(name: str, ts: float, dur: float, number: int = 0, tid: int = STREAM) -> Made:
    return event("kernel", name, ts, dur, tid, correlation=number)


def copy(ts: float, dur: float, number: int = 0) -> Made:
    return event("gpu_memcpy", "Memcpy HtoD", ts, dur, STREAM, correlation=number)


def talk(ts: float, dur: float, number: int = 0, **args: object) -> Made:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return event("kernel", name, ts, dur, TALK, correlation=number, **args)


def launch(ts: float, dur: float, number: int, name: str = "cudaLaunchKernel") -> Made:
    return event("cuda_runtime", name, ts, dur, correlation=number)


def operator(name: str, ts: float, dur: float, tid: int = MAIN, **args: object) -> Made:
    return event("cpu_op", name, ts, dur, tid, **args)


def annotation(name: str, ts: float, dur: float, tid: int = MAIN, **args: object) -> Made:
    return event("user_annotation", name, ts, dur, tid, **args)


def step(number: int, ts: float, dur: float) -> Made:
    return annotation(f"ProfilerStep#{number}", ts, dur)


def text(events: list[Any], **facts: object) -> bytes:
    return json.dumps({**facts, "traceEvents": events}).encode()


def write(path: Path, events: list[Any], **facts: object) -> Path:
    """A trace file, gzip where its name says so."""
    data = text(events, **facts)
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path


def traced(tmp_path: Path, events: list[Any], **facts: object) -> Trace:
    return read(write(tmp_path / "trace.json", events, **facts))


def answered(tmp_path: Path, events: list[Any], **facts: object) -> dict[str, Any]:
    return analyse(traced(tmp_path, events, **facts))
