"""How busy a job keeps its machine: looked at from the controller's thread, never by the ranks.

`cpu_percent`: time on a core of the ranks and of all that they started, of the time of the cores
that the job may use. `host_memory_gib`: their resident memory, pages that several share counted in
each, the most of any look. `gpu_percent`: of the time in which some kernel ran, the mean over the
devices in use (NVML); `power_w`: the sum of theirs; `gpu_memory_gib`: of the fullest, the most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from paceline.controller.nvml import Devices, NoDevices

GIB = 1024**3
FILE = "use.jsonl"
FIGURES = ("gpu_percent", "gpu_memory_gib", "power_w", "cpu_percent", "host_memory_gib")
PEAKS = ("gpu_memory_gib", "host_memory_gib")

LOOKS_PER_LIST = 4
"""Going through the machine's processes costs more than the look itself: once in so many, once the
ranks train."""

POINTS = 1000
"""The file gets a line when another 1 / POINTS of the time so far is over: its length grows with
the logarithm of that time."""

SHORT = "too short: of its steady steps the ranks reported, twice a second, less than three times"


@dataclass(frozen=True)
class Look:
    """`at`: seconds on a monotonic clock. `cpu_s`: core seconds that the ranks and all theirs have
    had until then; None where none was seen. `seen`: the figures of a moment."""

    at: float
    cpu_s: float | None
    seen: dict[str, float]


def cpu_percent(before: Look | None, after: Look, cores: int) -> float | None:
    """Of `cores`, between two looks; None where ranks came or went meanwhile."""
    if before is None or before.cpu_s is None or after.cpu_s is None:
        return None
    used, wall = after.cpu_s - before.cpu_s, after.at - before.at
    return 100 * used / (wall * cores) if used >= 0 and wall > 0 else None


@dataclass
class Steady:
    """The looks that count: those between steady steps of the training. A span between two reports
    of the ranks is counted once a third is seen: so what follows the last step never is."""

    cores: int
    warmup_steps: int
    samples: int = 0
    _weights: dict[str, float] = field(default_factory=dict)
    _sums: dict[str, float] = field(default_factory=dict)
    _peaks: dict[str, float] = field(default_factory=dict)
    _first: int | None = None
    _step: int = 0
    _span: list[Look] = field(default_factory=list)
    _waiting: list[Look] = field(default_factory=list)

    def add(self, step: int, steps: int, look: Look) -> None:
        """`step` of `steps` was the last that the ranks had reported at the time of the look."""
        if self._span:
            self._span.append(look)
        if step == self._step:
            return
        if self._first is None:  # not 0 in a job that goes on from a checkpoint
            self._first = step
        self._step = step
        steady = self._first + self.warmup_steps <= step <= steps
        if steady and self._waiting:
            self._count(self._waiting)
        self._waiting = self._span if steady else []
        self._span = [look] if steady else []

    def _count(self, span: list[Look]) -> None:
        self.samples += len(span) - 1
        percent = cpu_percent(span[0], span[-1], self.cores)
        if percent is not None:
            self._mean("cpu_percent", percent, span[-1].at - span[0].at)
        for look in span[1:]:
            for name, value in look.seen.items():
                if name in PEAKS:
                    self._peaks[name] = max(value, self._peaks.get(name, value))
                else:
                    self._mean(name, value, 1.0)

    def _mean(self, name: str, value: float, weight: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + weight * value
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def figures(self) -> dict[str, float]:
        return {name: self._sums[name] / self._weights[name] for name in self._sums} | self._peaks


class Use:
    """Of one start of the ranks. `processes`: lists the ranks here and all that they started.
    `directory`: the job's, whose log/use.jsonl keeps what was seen, a line a look."""

    def __init__(
        self,
        processes: Callable[[], list[psutil.Process]],
        devices: Devices | NoDevices,
        cores: int,
        warmup_steps: int,
        directory: Path,
    ) -> None:
        self._list, self._devices, self._cores = processes, devices, cores
        self._steady = Steady(cores, warmup_steps)
        self._file = directory / "log" / FILE
        self._processes: list[psutil.Process] = []
        self._looks = 0
        self._last: Look | None = None
        self._now: dict[str, float] = {}
        self._began = self._next_line = time.monotonic()

    def look(self, account: dict[str, Any] | None) -> None:
        """`account`: what the ranks last said of their progress, None before they have."""
        if self._looks % LOOKS_PER_LIST == 0 or account is None:
            self._processes = self._list()
        self._looks += 1
        look = self._see()
        percent = cpu_percent(self._last, look, self._cores)
        self._now = look.seen | ({} if percent is None else {"cpu_percent": percent})
        self._last = look
        if account is not None:
            self._steady.add(account["step"], account["steps"], look)
            self._keep(account["step"])

    def _see(self) -> Look:
        """A worker that has ended counts in the time of the rank that reaped it."""
        cpu_s, host_bytes, seen = 0.0, 0, self._devices.read()
        there = []
        for process in self._processes:
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:  # it ended since the list was made
                continue
            there.append(process)
            cpu_s += times.user + times.system + times.children_user + times.children_system
            host_bytes += memory.rss
        self._processes = there
        if not there:
            return Look(time.monotonic(), None, seen)
        return Look(time.monotonic(), cpu_s, seen | {"host_memory_gib": host_bytes / GIB})

    def _keep(self, step: int) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + (now - self._began) / POINTS
        line = json.dumps({"at": time.time(), "step": step} | self._now)
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def words(self) -> list[str]:
        """The last look, for the progress line."""
        now = self._now
        found = [f"cpu {now['cpu_percent']:.0f}%"] if "cpu_percent" in now else []
        gpu = [f"{now['gpu_percent']:.0f}%"] if "gpu_percent" in now else []
        gpu += [f"{now['power_w']:.0f} W"] if "power_w" in now else []
        return found + ([f"gpu {' '.join(gpu)}"] if gpu else [])

    def section(self) -> dict[str, Any]:
        """`utilisation` of the record (docs/design.md, 8)."""
        figures = self._steady.figures()
        why = dict.fromkeys((*FIGURES, "samples"), SHORT) | self._devices.reasons
        made: dict[str, Any] = {name: figures.get(name) for name in FIGURES}
        made["samples"] = self._steady.samples or None
        return made | {"reasons": {k: why[k] for k, value in made.items() if value is None}}

    def close(self) -> None:
        self._devices.close()


class Unseen:
    """Of ranks that an outer launcher started: the thread that would look is in one of them."""

    WHY = "not looked at: paceline has no process beside the ranks of an outer launcher"

    def look(self, account: dict[str, Any] | None) -> None:
        return None

    def words(self) -> list[str]:
        return []

    def section(self) -> dict[str, Any]:
        names = (*FIGURES, "samples")
        return dict.fromkeys(names) | {"reasons": dict.fromkeys(names, self.WHY)}

    def close(self) -> None:
        return None
