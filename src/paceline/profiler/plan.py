"""What one cycle on one rank is to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from paceline.types import World

if TYPE_CHECKING:
    from paceline.profiler.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """`number`: of the cycle, None where there is only one. `first`: the step that it begins with.
    `slowest`: this rank is traced because it works longest."""

    settings: Schedule
    world: World
    directory: Path
    number: int | None
    first: int
    slowest: bool

    @property
    def name(self) -> str:
        """Of its files, without an ending."""
        return f"rank{self.world.rank}" + ("" if self.number is None else f".{self.number}")

    def make(self, action: ProfilerAction, step: int) -> tuple[torch.profiler.profile, list[Any]]:
        """A profiler whose first step is number `step`, and the cell with what it does next."""
        settings, does = self.settings, [action]
        profile = torch.profiler.profile(
            activities=[getattr(ProfilerActivity, name.upper()) for name in self.activities],
            schedule=lambda step: does[0],
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
            with_flops=settings.with_flops,
        )
        profile.step_num = step
        return profile, does

    @property
    def activities(self) -> list[str]:
        asked = self.settings.activities
        if asked != "auto":
            return list(asked)
        return ["cpu", "cuda"] if self.world.device.type == "cuda" else ["cpu"]
