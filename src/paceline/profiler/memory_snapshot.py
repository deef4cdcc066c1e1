"""profiler=memory_snapshot: which code holds the device's memory, when it runs out above all.

The history of PyTorch's caching allocator on a CUDA device, as a pickle that pytorch.org/memory_viz
draws (torch.cuda.memory; "Understanding GPU memory", PyTorch blog 2023).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from paceline.types import Context, at_least


@dataclass(frozen=True)
class MemorySnapshot:
    """`wait`: steps before the history begins. `max_entries`: allocations and frees that are kept,
    the newest; in a file each takes a kilobyte or some. `context`: of what the code is kept, and
    `stacks`: of which frames, as torch.cuda.memory._record_memory_history takes them."""

    wait: int
    max_entries: int
    context: Literal["all", "alloc", "state"]
    stacks: Literal["python", "all"]

    def __post_init__(self) -> None:
        at_least(0, wait=self.wait)
        at_least(1, max_entries=self.max_entries)

    def open(
        self, context: Context, model: nn.Module, wrapped: nn.Module, slowest: Callable[[], int]
    ) -> History:
        return History(self, context)


class History:
    """From step `wait` of this process to the end of the training, on every rank; all of these
    steps are disturbed. Written as the training ends, or whatever error ends it; an out-of-memory
    error before that has the state of the memory alone."""

    def __init__(self, settings: MemorySnapshot, context: Context) -> None:
        self._settings, self._context = settings, context
        self._first: int | None = None
        self._recording = False
        self._snapshots: list[str] = []
        self._problems: list[str] = []

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        out_of_memory = isinstance(error[1], torch.OutOfMemoryError) if error[1:] else False
        if self._recording or out_of_memory:
            self._guarded(self._dump)
        if out_of_memory and self._snapshots:
            where = self._context.directory / self._snapshots[-1]
            print(
                f"WARNING what held the memory is in {where}: open it at pytorch.org/memory_viz",
                flush=True,
            )
        if self._recording:
            self._recording = False
            self._guarded(lambda: torch.cuda.memory._record_memory_history(enabled=None))

    def begin(self, step: int) -> None:
        if self._first is None:
            self._first = step
        if step - self._first == self._settings.wait:
            self._recording = True
            self._guarded(self._record)

    def tick(self) -> bool:
        return self._recording

    def report(self) -> dict[str, Any]:
        asked, steps = self._settings.wait, self._context.run.steps - (self._first or 0)
        reason = (
            f"profiler: no history of allocations, profiler.wait={asked} and {steps} steps were "
            "left; lower it, or raise run.steps"
        )
        return {
            "snapshots": self._snapshots,
            "problems": self._problems,
            "reasons": [] if self._snapshots or self._problems else [reason],
        }

    def _record(self) -> None:
        torch.cuda.memory._record_memory_history(
            enabled="all",
            context=self._settings.context,
            stacks=self._settings.stacks,
            max_entries=self._settings.max_entries,
        )

    def _dump(self) -> None:
        path = Path("trace") / f"rank{self._context.world.rank}.memory.pickle"
        whole = self._context.directory / path
        whole.parent.mkdir(exist_ok=True)
        half = whole.with_name(f".{whole.name}")
        try:
            torch.cuda.memory._dump_snapshot(str(half))
            os.replace(half, whole)
        finally:
            half.unlink(missing_ok=True)
        self._snapshots.append(str(path))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a full disk: the training is worth more
            rank = self._context.world.rank
            problem = f"rank {rank}: no memory snapshot, {type(error).__name__}: {error}"
            self._problems.append(problem)
            print(f"WARNING {problem}", flush=True)
