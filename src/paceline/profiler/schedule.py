"""profiler=schedule: torch.profiler over a few steps; a trace and a table a cycle and rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from paceline.types import Context, at_least

OPERATORS = 30
"""Rows of a cycle's table of operators, by self time."""


@dataclass(frozen=True)
class Schedule:
    wait: int
    warmup: int
    active: int
    repeat: int
    record_shapes: bool
    profile_memory: bool
    with_stack: bool
    with_flops: bool
    ranks: list[int]

    def __post_init__(self) -> None:
        at_least(0, wait=self.wait, warmup=self.warmup)
        at_least(1, active=self.active, repeat=self.repeat)

    def open(self, context: Context) -> Traced:
        return Traced(self, context)


class Traced:
    """Every rank follows the same schedule, so that all ranks know which steps are disturbed;
    only `ranks` are traced."""

    def __init__(self, settings: Schedule, context: Context) -> None:
        self._schedule = torch.profiler.schedule(
            wait=settings.wait,
            warmup=settings.warmup,
            active=settings.active,
            repeat=settings.repeat,
        )
        self._settings, self._rank = settings, context.world.rank
        self._directory = context.directory / "trace"
        self._traces: list[str] = []
        self._summaries: list[str] = []
        self._step = 0
        self._settling = False
        self._profile = self._make(context) if self._rank in settings.ranks else None

    def __enter__(self) -> Traced:
        if self._profile is not None:
            self._profile.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile is not None:
            self._profile.stop()

    def tick(self) -> bool:
        action = self._schedule(self._step)
        disturbed = action is not ProfilerAction.NONE or self._settling
        # the step after a cycle waits for the rank that is still writing its trace
        self._settling = action is ProfilerAction.RECORD_AND_SAVE
        self._step += 1
        if self._profile is not None:
            self._profile.step()
        return disturbed

    def report(self) -> dict[str, Any]:
        return {"traces": self._traces, "summaries": self._summaries}

    def _make(self, context: Context) -> torch.profiler.profile:
        activities = [ProfilerActivity.CPU]
        if context.world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        return torch.profiler.profile(
            activities=activities,
            schedule=self._schedule,
            on_trace_ready=self._export,
            record_shapes=self._settings.record_shapes,
            profile_memory=self._settings.profile_memory,
            with_stack=self._settings.with_stack,
            with_flops=self._settings.with_flops,
        )

    def _export(self, profile: torch.profiler.profile) -> None:
        self._directory.mkdir(exist_ok=True)
        cycle = len(self._traces)
        name = f"rank{self._rank}" + (f".{cycle}" if self._settings.repeat > 1 else "")
        path = self._directory / f"{name}.json.gz"
        profile.export_chrome_trace(str(path))
        self._traces.append(str(Path("trace") / path.name))
        # as each cycle ends: what the profiler knows then is that cycle alone
        summary = self._directory / f"{name}.operators.txt"
        on_gpu = ProfilerActivity.CUDA in profile.activities
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        summary.write_text(profile.key_averages().table(sort_by=order, row_limit=OPERATORS))
        self._summaries.append(str(Path("trace") / summary.name))
