"""Where the time of each step went: one timeline of marks, each closing a phase.

On a CPU a mark is a perf_counter stamp (about 0.2 us); on a GPU it is an event on the compute
stream, so that data_wait is the exposed wait, and nothing synchronises. Read late, as arrays.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

PHASES = (
    "data_wait",
    "to_device",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "profiler",
    "other",
)
DATA_WAIT, TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, PROFILER, OTHER = range(8)
GAP = -1
"""The code of a stamp that opens a stretch of steps: the time before it belongs to no step."""

TAGS = ("steady", "warmup", "checkpoint", "profiled", "compile", "skipped")
STEADY, WARMUP, SAVED, PROFILED, COMPILED, SKIPPED = range(6)
"""Larger wins when ranks disagree; everything but STEADY stays out of the steady figure. SKIPPED
is given late, to steady steps in which a gradient overflowed: they do less work."""

UNHURRIED = (STEADY, SAVED, SKIPPED)
"""Tags of steps whose phases are counted one by one."""

_NEXT = {
    DATA_WAIT: TO_DEVICE,  # on a device; on the host nothing is copied
    TO_DEVICE: FORWARD,
    FORWARD: BACKWARD,
    OPTIMIZER: OTHER,
    OTHER: CHECKPOINT,
    CHECKPOINT: PROFILER,
}
"""The phase that follows another within a step."""

_DRAIN_AT = 4096
_KEEP_PENDING = 1024

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """One row an optimizer step, in order. Seconds; `start_s` on the clock of the device."""

    step: npt.NDArray[np.int64]
    tag: npt.NDArray[np.int64]
    start_s: Floats
    step_s: Floats
    phase_s: Floats  # [steps, len(PHASES)]

    def typical_s(self) -> float:
        """Median steady step; of all steps where none was steady."""
        steady = self.step_s[self.tag == STEADY]
        return float(np.median(steady if len(steady) else self.step_s))


class Ledger:
    """`mark(phase)` closes a phase, `end_step(step, tag)` a step, `begin()` opens a stretch."""

    def __init__(self, device: torch.device, accumulation: int = 1) -> None:
        self._accumulation = accumulation
        self._next = {**_NEXT, DATA_WAIT: FORWARD} if device.type == "cpu" else _NEXT
        self._stamps = array("d")
        self._codes = array("b")
        self._ends = array("q")
        self._steps = array("q")
        self._tags = array("b")
        self._seen = 0
        self._events: _Events | None = None
        if device.type == "cuda":
            self._events = _Events(self._stamps)
            self.mark = _marker(self._events.record, self._codes.append)
        else:
            self.mark = _host_marker(self._stamps.append, self._codes.append)

    def begin(self) -> None:
        self.mark(GAP)

    def end_step(self, step: int, tag: int) -> None:
        self._ends.append(len(self._codes))
        self._steps.append(step)
        self._tags.append(tag)
        if self._events is not None:
            self._events.drain()

    def phase(self) -> str:
        """The phase that is open now, for the report of a failure."""
        if not self._codes:
            return "build"
        this_step = self._codes[self._ends[-1] if self._ends else 0 :]
        if not this_step or this_step[-1] == GAP or set(this_step) <= {GAP, OPTIMIZER}:
            return PHASES[DATA_WAIT]  # zero_grad, which opens a step, counts as optimizer
        last = this_step[-1]
        if last == BACKWARD:
            more = this_step.count(BACKWARD) < self._accumulation
            return PHASES[DATA_WAIT if more else OPTIMIZER]
        return PHASES[self._next.get(last, OTHER)]

    def recent_share(self, phase: int) -> float | None:
        """Share of the steps' time since the last call that `phase` took; None if none passed.
        What lies between two stretches, as a check of a step, is no step's."""
        known = min(len(self._stamps), len(self._codes))
        stamps = np.array(self._stamps[self._seen : known], np.float64)
        codes = np.array(self._codes[self._seen : known], np.int64)
        self._seen = max(known - 1, 0)
        spans, of = np.diff(stamps), codes[1:]
        total = float(spans[of != GAP].sum())
        return float(spans[of == phase].sum()) / total if total > 0 else None

    def steps(self) -> Steps:
        """All steps so far. On a GPU this waits for the last event."""
        if self._events is not None:
            self._events.drain(everything=True)
        ends = np.array(self._ends, np.int64)
        codes = np.array(self._codes, np.int64)
        stamps = np.array(self._stamps, np.float64)
        spans = np.diff(stamps, prepend=stamps[:1])
        begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        row = np.searchsorted(ends, np.arange(len(codes)), side="right")
        inside = (codes != GAP) & (row < len(ends))
        phase_s = np.zeros((len(ends), len(PHASES)))
        np.add.at(phase_s, (row[inside], codes[inside]), spans[inside])
        # the stamp before a step's first mark is where it began
        first = begins + (codes[begins] == GAP) if len(ends) else begins
        return Steps(
            step=np.array(self._steps, np.int64),
            tag=np.array(self._tags, np.int64),
            start_s=stamps[first - 1] if len(ends) else np.zeros(0),
            step_s=phase_s.sum(axis=1),
            phase_s=phase_s,
        )


class _Events:
    """CUDA events as stamps, in seconds after the first; read once they are old."""

    def __init__(self, stamps: array[float]) -> None:
        self._stamps = stamps
        self._pending: list[torch.cuda.Event] = []
        self._previous: torch.cuda.Event | None = None

    def record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._pending.append(event)

    def drain(self, everything: bool = False) -> None:
        if everything and self._pending:
            self._pending[-1].synchronize()
        ready = len(self._pending) if everything else len(self._pending) - _KEEP_PENDING
        if not everything and (
            len(self._pending) < _DRAIN_AT or not self._pending[ready - 1].query()
        ):
            return
        for event in self._pending[:ready]:
            # from event to event: elapsed_time is a float32 in milliseconds, too coarse for hours
            gap = 0.0 if self._previous is None else self._previous.elapsed_time(event) / 1e3
            self._stamps.append((self._stamps[-1] if self._stamps else 0.0) + gap)
            self._previous = event
        del self._pending[:ready]


def _host_marker(
    stamp: Callable[[float], None], append: Callable[[int], None]
) -> Callable[[int], None]:
    now = time.perf_counter  # one call deep: a mark costs 0.3 us, eight of them stand in a step

    def mark(phase: int) -> None:
        stamp(now())
        append(phase)

    return mark


def _marker(stamp: Callable[[], None], append: Callable[[int], None]) -> Callable[[int], None]:
    def mark(phase: int) -> None:
        stamp()
        append(phase)

    return mark
