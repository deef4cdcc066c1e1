"""Settings without a live object: their fields are their YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Run:
    """What is trained, for how long. `steps` counts optimizer steps."""

    steps: int
    accumulation_steps: int
    seed: int
    clip_grad_norm: float | None
    eval_batches: int
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, accumulation_steps=self.accumulation_steps)
        at_least(0, seed=self.seed, eval_batches=self.eval_batches)
        if self.clip_grad_norm is not None and self.clip_grad_norm <= 0:
            raise ValueError(
                f"clip_grad_norm={self.clip_grad_norm}: give a positive norm, "
                "or null to leave gradients as they are"
            )


@dataclass(frozen=True)
class Launch:
    """Processes of one job."""

    nproc: int | Literal["auto"]
    threads_per_rank: int | Literal["auto"]
    host_memory: Literal["steady", "system"]
    timeout_s: float
    stop_grace_s: float

    def __post_init__(self) -> None:
        for name in ("nproc", "threads_per_rank"):
            value = getattr(self, name)
            if value != "auto":
                at_least(1, **{name: value})
        for name in ("timeout_s", "stop_grace_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give seconds above 0")


@dataclass(frozen=True)
class Measure:
    """Which steps are the steady state: those after `warmup_steps`, for at least `window_s`."""

    warmup_steps: int
    window_s: float

    def __post_init__(self) -> None:
        at_least(1, warmup_steps=self.warmup_steps)
        if self.window_s < 0:
            raise ValueError(f"window_s={self.window_s}: give seconds, 0 or more")


@dataclass(frozen=True)
class Sweep:
    """What a sweep does when a cell fails."""

    on_failure: Literal["continue", "stop"]


def at_least(least: int, **values: int) -> None:
    """Raise ValueError naming the first of `values` that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: give {least} or more")
