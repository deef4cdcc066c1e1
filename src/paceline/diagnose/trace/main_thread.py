"""Where the time of a step goes on the main thread: all there is in a trace without a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.diagnose.trace.columns import ANNOTATION, OPERATOR, Ints, Trace
from paceline.diagnose.trace.host import compile_spans
from paceline.diagnose.trace.intervals import Spans, clip, intersect, subtract, union

PARTS = (
    "compile_pct",
    "input_pct",
    "checkpoint_pct",
    "optimizer_pct",
    "backward_pct",
    "forward_pct",
    "communication_pct",
    "python_pct",
)

INPUT = re.compile(r"^enumerate\(DataLoader\)#|^torch/utils/data/dataloader\.py\(\d+\): __next__$")
CHECKPOINT = re.compile(
    r"^(torch/serialization\.py\(\d+\): save|torch/distributed/checkpoint/.*: (async_)?save)$"
)
OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
BACKWARD = re.compile(r"^autograd::engine::evaluate_function")
COLLECTIVE = re.compile(
    r"^(nccl|rccl|gloo|ucc|mpi):|^c10d::|^_?c10d_functional::|^record_param_comms$"
)


def main_thread(trace: Trace) -> int | None:
    """The thread of the steps, else the one with the most time in operators; None: no host event
    at all."""
    if len(trace.step_rows):
        return int(trace.thread[trace.step_rows[0]])
    rows = trace.host[trace.kind[trace.host] == OPERATOR]
    rows = rows if len(rows) else trace.host
    if not len(rows):
        return None
    times = {
        int(t): union(*_times(trace, rows[trace.thread[rows] == t])).total
        for t in np.unique(trace.thread[rows])
    }
    return max(times, key=lambda t: (times[t], str(trace.threads[t])))


@dataclass(frozen=True)
class MainThread:
    """When it did what; `parts`: PARTS without python, in the order in which they count."""

    parts: dict[str, Spans]
    operators: Spans
    span: Spans
    """From its first event to its last one's end."""

    def shares(self, windows: Spans) -> tuple[dict[str, Any], dict[str, str]]:
        """PARTS of the windows' wall, in percent; they add up to 100. Each moment counts once, for
        the first part that it fits: compiling, the data loader's next, saving, the optimizer,
        backward and other operators, a collective under way, none of these (Python between
        operators).

        Where the trace holds no operator of the main thread, what needs them is null with a reason.
        """
        wall = windows.total
        parts: dict[str, Any] = {"wall_us": wall / 1000 if wall else None, **dict.fromkeys(PARTS)}
        if not wall:
            return parts, dict.fromkeys(parts, "the trace holds no event of the host")
        left = windows
        for name, spans in self.parts.items():
            near = clip(spans, windows)
            parts[name] = 100 * intersect(left, near).total / wall
            left = subtract(left, near)
        parts["python_pct"] = 100 * left.total / wall
        if intersect(clip(self.operators, windows), windows).total:
            return parts, {}
        why = "the trace holds no operator of the main thread in this time"
        unknown = ("backward_pct", "forward_pct", "python_pct")
        return parts | dict.fromkeys(unknown), dict.fromkeys(unknown, why)


def look(trace: Trace) -> MainThread:
    mine = _mine(trace)
    talk = trace.named(COLLECTIVE)
    operators = mine[trace.kind[mine] == OPERATOR]
    computing = operators[~talk[trace.name[operators]]]
    computes = subtract(union(*_times(trace, computing)), _named(trace, mine, COLLECTIVE))
    parts = {
        "compile_pct": compile_spans(trace, mine),
        "input_pct": _named(trace, mine, INPUT),
        "checkpoint_pct": _named(trace, mine, CHECKPOINT),
        "optimizer_pct": _named(trace, mine[trace.kind[mine] == ANNOTATION], OPTIMIZER),
        "backward_pct": intersect(computes, _named(trace, mine, BACKWARD)),
        "forward_pct": computes,
        "communication_pct": _named(trace, trace.host, COLLECTIVE),
    }
    busy = union(*_times(trace, mine))
    span = Spans(busy.start[:1], busy.end[-1:])
    return MainThread(parts, union(*_times(trace, operators)), span)


def _mine(trace: Trace) -> Ints:
    rows: Ints = trace.host[trace.thread[trace.host] == main_thread(trace)]
    return rows


def _named(trace: Trace, rows: Ints, pattern: re.Pattern[str]) -> Spans:
    return union(*_times(trace, rows[trace.named(pattern)[trace.name[rows]]]))


def _times(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    return trace.start[rows], trace.end[rows]
