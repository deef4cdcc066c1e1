"""A trace in memory: numpy columns, one row an event, sorted by time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

KERNEL, COPY, FILL, OPERATOR, CALL, ANNOTATION, PYTHON = range(7)

KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": FILL,
    "cpu_op": OPERATOR,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "hip_runtime": CALL,
    "xpu_runtime": CALL,
    "xpu_driver": CALL,
    "mtia_runtime": CALL,
    "privateuse1_runtime": CALL,
    "privateuse1_driver": CALL,
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    # as Kineto wrote them before 2022
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": FILL,
    "Operator": OPERATOR,
    "Runtime": CALL,
}
"""Categories of Kineto's Chrome traces -> what the analysis tells apart. All else (flow arrows,
the shadows that annotations cast on the device, the profiler's own overhead) is left out."""

COMMUNICATION = ("nccl", "rccl", "msccl")
"""What the names of communication kernels hold: of NCCL, RCCL and MSCCL."""

DEVICE_COPY = re.compile(r"^(__amd_rocclr_(copy|fill)Buffer|mem(cpy|set))", re.IGNORECASE)
"""Copies and fills that ROCm runs, and records, as kernels."""

STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,18})$")


def communicates(name: str) -> bool:
    """Is it a communication kernel's? Plain words: kernels' names run to hundreds of letters."""
    lower = name.lower()
    return any(word in lower for word in COMMUNICATION)


@dataclass(frozen=True)
class Detail:
    """What the arguments of a collective's event say of it; None where they are silent."""

    collective: str | None
    in_elements: int | None
    out_elements: int | None
    dtype: str | None
    group_size: int | None


@dataclass
class Notes:
    """What was met while reading a file, in counts and sentences."""

    cut: str | None = None
    """Why the file's end is missing; None: it is whole."""

    unreadable: int = 0
    """Pieces that are no event: broken JSON, or no object."""

    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> events that can't be placed on a timeline."""

    def leave_out(self, reason: str, count: int) -> None:
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + int(count)

    def sentences(self) -> list[str]:
        said = [f"the file is cut off ({self.cut}): these figures are of what could be read"]
        said = said if self.cut else []
        if self.unreadable:
            said.append(f"{self.unreadable} pieces of the file are no events and were left out")
        for reason, count in sorted(self.left_out.items()):
            said.append(f"{count} events were left out: {reason}")
        return said


@dataclass
class Trace:
    """Rows are sorted by start, the longer first. Times in ns since the first event."""

    path: str
    rank: int | None
    rank_from: str
    world_size: int | None
    group_size: int | None
    """Of every process group, where the trace says so and all are alike."""
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    start: Ints
    end: Ints
    correlation: Ints
    """The launch call's and its kernel's common number; 0 where there is none."""
    names: list[str]
    """Of each number in `name`."""
    threads: list[tuple[object, object]]
    """(pid, tid) of each thread, or (device, stream)."""
    details: dict[int, Detail]
    notes: list[str]
    _named: dict[str, Mask] = field(default_factory=dict)

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """[names] bool: which names the pattern is found in."""
        found = self._named.get(pattern.pattern)
        if found is None:
            hits = (pattern.search(name) is not None for name in self.names)
            found = self._named[pattern.pattern] = np.fromiter(hits, bool, len(self.names))
        return found

    def text(self, row: int | np.integer) -> str:
        return self.names[int(self.name[row])]

    @cached_property
    def device(self) -> Ints:
        """Rows of device activities: kernels, copies and fills."""
        return np.flatnonzero(self.kind <= FILL)

    @cached_property
    def host(self) -> Ints:
        """Rows of what the host did, without the steps' own annotations."""
        host = self.kind >= OPERATOR
        host[self.step_rows] = False
        return np.flatnonzero(host)

    @cached_property
    def step_rows(self) -> Ints:
        """Rows of ProfilerStep annotations, by time."""
        return np.flatnonzero((self.kind >= OPERATOR) & self.named(STEP)[self.name])

    @cached_property
    def is_communication(self) -> Mask:
        talks = np.fromiter(map(communicates, self.names), bool, len(self.names))
        found: Mask = (self.kind == KERNEL) & talks[self.name]
        return found

    @cached_property
    def is_copy(self) -> Mask:
        """Copies and fills, the device's own kernels for them too."""
        as_kernel = (self.kind == KERNEL) & self.named(DEVICE_COPY)[self.name]
        found: Mask = (self.kind == COPY) | (self.kind == FILL) | as_kernel
        return found

    @cached_property
    def launch(self) -> Ints:
        """[rows] for each device activity the row of the call that launched it, else -1."""
        found = np.full(len(self.kind), -1, np.int64)
        calls = np.flatnonzero((self.kind == CALL) & (self.correlation > 0))
        if not len(calls):
            return found
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        numbers = self.correlation[calls]
        wanted = self.correlation[self.device]
        at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
        known = (numbers[at] == wanted) & (wanted > 0)
        found[self.device[known]] = calls[at[known]]
        return found
