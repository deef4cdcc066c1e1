"""What the device did over a window: idle, compute, communication, copies, and why it idled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.diagnose.trace.columns import CALL, Ints, Trace
from paceline.diagnose.trace.intervals import Spans, contains, gaps, intersect, subtract, union

SHARES = (
    "idle_pct",
    "compute_pct",
    "non_compute_pct",
    "overlap_pct",
    "communication_pct",
    "communication_only_pct",
    "copy_pct",
    "copy_only_pct",
    "launch_bound_pct",
    "queued_pct",
    "unlaunched_pct",
)

NO_DEVICE = "no device activity in the trace"
NO_LENGTH = "the device activities have no length"
NO_COMMUNICATION = "no communication kernel ran on the device"


@dataclass(frozen=True)
class Device:
    """Spans in which the device did something, of chosen activities. A trace of one process that
    drives several devices: in which any of them did."""

    rows: Ints
    busy: Spans
    compute: Spans
    communication: Spans
    copies: Spans
    launch_bound: Spans
    queued: Spans
    unlaunched: Spans

    @property
    def span(self) -> Spans:
        """From the first activity's start to the last one's end."""
        return Spans(self.busy.start[:1], self.busy.end[-1:])

    @property
    def idle(self) -> Spans:
        return gaps(self.busy)

    @property
    def exposed(self) -> Spans:
        """Communication while nothing is computed."""
        return subtract(self.communication, self.compute)


def look(trace: Trace, rows: Ints) -> Device:
    """Of these device rows."""
    start, end = trace.start[rows], trace.end[rows]
    talks, copies = trace.is_communication[rows], trace.is_copy[rows]
    computes = ~talks & ~copies
    busy = union(start, end)
    late, queued, unlaunched = _waits(trace, rows, busy)
    return Device(
        rows=rows,
        busy=busy,
        compute=union(start[computes], end[computes]),
        communication=union(start[talks], end[talks]),
        copies=union(start[copies], end[copies]),
        launch_bound=late,
        queued=queued,
        unlaunched=unlaunched,
    )


def _waits(trace: Trace, rows: Ints, busy: Spans) -> tuple[Spans, Spans, Spans]:
    """Idle time by what it waited for.

    A stretch without activity ends with the start of one. Until that one's launch call returned
    (or it started, where that was earlier) the host was late: launch-bound. After it, it was
    queued: it waited for the launch to arrive, for its stream, or for an event. Where the trace
    holds no launch call of it, neither is known.
    """
    idle = gaps(busy)
    held = rows[trace.end[rows] > trace.start[rows]]
    ender = held[np.searchsorted(trace.start[held], idle.end)]  # rows are sorted by start
    call = trace.launch[ender]
    known = call >= 0
    launched = np.clip(trace.end[call], idle.start, idle.end)
    late = union(idle.start[known], launched[known])
    queued = union(launched[known], idle.end[known])
    return late, queued, union(idle.start[~known], idle.end[~known])


def shares(found: Device) -> tuple[dict[str, Any], dict[str, str]]:
    """SHARES in percent of the span (overlap: of communication) and `span_us`; null with a reason
    where there is nothing to take a share of."""
    span = found.span.total
    if not span:
        empty = dict.fromkeys(("span_us", *SHARES))
        return empty, dict.fromkeys(empty, NO_LENGTH if len(found.rows) else NO_DEVICE)
    idle, compute = span - found.busy.total, found.compute.total
    copies = subtract(subtract(found.copies, found.compute), found.communication)
    parts = {
        "idle_pct": idle,
        "compute_pct": compute,
        "non_compute_pct": span - idle - compute,
        "communication_pct": found.communication.total,
        "communication_only_pct": found.exposed.total,
        "copy_pct": found.copies.total,
        "copy_only_pct": copies.total,
        "launch_bound_pct": found.launch_bound.total,
        "queued_pct": found.queued.total,
        "unlaunched_pct": found.unlaunched.total,
    }
    values: dict[str, Any] = {"span_us": span / 1000}
    values |= {name: 100 * ns / span for name, ns in parts.items()}
    values["overlap_pct"], reasons = None, {"overlap_pct": NO_COMMUNICATION}
    if found.communication.total:
        both = intersect(found.communication, found.compute).total
        values["overlap_pct"], reasons = 100 * both / found.communication.total, {}
    if idle and found.unlaunched.total == idle:
        why = "the trace holds no launch call of the activities that ended the idle stretches"
        for name in ("launch_bound_pct", "queued_pct"):
            values[name], reasons[name] = None, why
    return values, reasons


def launched_in(trace: Trace, windows: Spans) -> Ints:
    """Device rows whose launch call began inside of the windows."""
    call = trace.launch[trace.device]
    rows: Ints = trace.device[(call >= 0) & contains(windows, trace.start[call])]
    return rows


def by_step(trace: Trace) -> list[Ints]:
    """Of each step, by time, the device rows whose launch call began inside of it."""
    steps = trace.step_rows
    call = trace.launch[trace.device]
    at = np.searchsorted(trace.start[steps], trace.start[call], side="right") - 1
    held = (call >= 0) & (at >= 0)
    held &= trace.start[call] < trace.end[steps[np.maximum(at, 0)]]
    rows, at = trace.device[held], at[held]
    order = np.argsort(at, kind="stable")
    bounds = np.searchsorted(at[order], np.arange(len(steps) + 1))
    return [rows[order[bounds[i] : bounds[i + 1]]] for i in range(len(steps))]


def launches(trace: Trace) -> int:
    """Calls of the host that launch a kernel, of the device or not in the trace."""
    named = np.fromiter(("LaunchKernel" in n for n in trace.names), bool, len(trace.names))
    return int(((trace.kind == CALL) & named[trace.name]).sum())
