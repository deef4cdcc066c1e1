"""The curves of a job as TensorBoard scalars, in tb/ of its directory."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

MAX_POINTS = 10_000
"""A longer run is thinned to every n-th step; steps.npz has them all."""


LIVE = ("loss", "units_per_s", "data_wait_share")


class Live:
    """What rank 0 reports while the job runs, under the same tags; `write` puts all steps in its
    place. A disk that takes no more costs the curves, not the job."""

    def __init__(self, directory: Path) -> None:
        self._out = directory / "tb"
        self._writer: EventFileWriter | None = None
        self._step, self._broken = 0, False

    def add(self, account: dict[str, Any]) -> None:
        """One report; the same again is nothing new."""
        if self._broken or account["step"] == self._step:
            return
        self._step = account["step"]
        point = {tag: account[tag] for tag in LIVE if isinstance(account[tag], int | float)}
        try:
            if self._writer is None:
                self._writer = EventFileWriter(str(self._out), flush_secs=1)
            _add(self._writer, time.time(), self._step, point)
        except OSError:
            self._broken = True

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


def write(directory: Path, record: dict[str, Any], units_per_step: float | None = None) -> None:
    """Scalars of each step: loss, step_s, units_per_s, data_wait_share; of each look at the
    machine: use/cpu_percent and the others of log/use.jsonl; at the end eval_loss.

    A second call replaces what the first wrote. Without steps.npz nothing is written.
    """
    source = directory / "steps.npz"
    if not source.is_file():
        return
    with np.load(source) as loaded:
        steps = {name: loaded[name] for name in loaded.files}
    curves = _curves(steps, record, units_per_step)
    wall = _first_step_at(steps, record, source) + steps["start_s"] + steps["step_s"]
    out = directory / "tb"
    out.mkdir(exist_ok=True)
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(out), max_queue_size=1000)
    try:
        for i in range(0, len(steps["step"]), max(1, math.ceil(len(wall) / MAX_POINTS))):
            point = {tag: float(values[i]) for tag, values in curves.items()}
            _add(writer, float(wall[i]), int(steps["step"][i]), point)
        for seen in _looks(directory):
            use = {f"use/{name}": value for name, value in seen.items()}
            _add(writer, use.pop("use/at"), int(use.pop("use/step")), use)
        eval_loss = record["numerics"]["eval_loss"]
        if isinstance(eval_loss, int | float) and len(wall):
            _add(writer, float(wall[-1]), int(steps["step"][-1]), {"eval_loss": eval_loss})
    finally:
        writer.close()


def _looks(directory: Path) -> list[dict[str, float]]:
    """at (seconds since 1970), step, and what was seen then; none where nobody looked."""
    kept = directory / "log" / "use.jsonl"
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def _curves(
    steps: dict[str, Any], record: dict[str, Any], units_per_step: float | None
) -> dict[str, Any]:
    """Tag -> [steps] f64; not a number where a step has no value."""
    step_s = steps["step_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        curves = {"loss": steps["loss"], "step_s": step_s}
        units = units_per_step or _units_per_step(steps, record)
        if units is not None:
            curves["units_per_s"] = units / step_s
        phases = [str(name) for name in steps["phases"]]
        if "data_wait" in phases:
            curves["data_wait_share"] = steps["phase_s"][:, phases.index("data_wait")] / step_s
    return curves


def _units_per_step(steps: dict[str, Any], record: dict[str, Any]) -> float | None:
    """As the record says; else from its steady rate, which is units / mean steady step."""
    throughput = record["throughput"]
    known, rate = throughput.get("units_per_step"), throughput["steady_units_per_s"]
    if known is not None or rate is None:
        return None if known is None else float(known)
    tags = [str(name) for name in steps["tags"]]
    steady = steps["step_s"][steps["tag"] == tags.index("steady")]
    return float(rate * steady.mean()) if len(steady) else None


def _first_step_at(steps: dict[str, Any], record: dict[str, Any], source: Path) -> float:
    """Seconds since 1970 at 0 on the clock of `start_s`: from the job's start, else from the
    time at which the steps were written down."""
    if not len(steps["step"]):
        return 0.0
    started, phases = record["job"]["started_at"], record["ledger"]["phases_s"]
    if started is None:
        ended = float(steps["start_s"][-1] + steps["step_s"][-1])
        return source.stat().st_mtime - ended
    at = started if isinstance(started, int | float) else _seconds(started)
    before = (phases.get("startup") or 0.0) + (phases.get("build") or 0.0)
    return float(at + before - steps["start_s"][0])


def _seconds(iso: str) -> float:
    return datetime.datetime.fromisoformat(iso).timestamp()


def _add(writer: EventFileWriter, wall: float, step: int, point: dict[str, float]) -> None:
    values = [
        Summary.Value(tag=tag, simple_value=value)
        for tag, value in point.items()
        if math.isfinite(value)
    ]
    if values:
        writer.add_event(Event(wall_time=wall, step=step, summary=Summary(value=values)))
