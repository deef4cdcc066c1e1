"""Facts that parts pass to each other. Imports no torch when the program runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.types.settings import Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.types.protocols import CommHook, Data, Precision


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What stops a job at the end of a step, from a user or a scheduler. USR1 and USR2 are what people
give to sbatch --signal, which reaches every process of a job."""


@dataclass(frozen=True)
class World:
    """Who this process is, after the group is up."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    device: torch.device

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def local_world_size(self) -> int:
        """Ranks on this node, as launchers set it; else all are here."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def shard_group(self, asked: int | Literal["auto"]) -> int:
        """Ranks over which HSDP shards; auto: those of a node, on a single node half of them."""
        if asked != "auto":
            return asked
        size, local = self.world_size, self.local_world_size
        return local if local < size else max(1, size // 2)


@dataclass(frozen=True)
class Context:
    """What a choice may know when it opens. `build` makes the object of a nested `_target_`;
    `identity`: the job's hashes and `work`, dotted key -> value of what decides its training."""

    world: World
    run: Run
    directory: Path
    build: Callable[..., Any]
    identity: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class TrainState:
    """Everything that a resumed run needs. `step` is the number of optimizer steps done.

    `fold()` brings `history` (loss and gradient norm of each step) up to date over all ranks: a
    collective, which a checkpoint calls on every rank before it reads the history.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    precision: Precision
    data: Data
    comm_hook: CommHook
    step: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    fold: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class CompileReport:
    """What the compiler really did on this rank; the default: nothing. Seconds are wall time.

    `frames_fallen_back` ran eager; `limits_hit` names those of them that did so because they were
    recompiled too often. `recompile_limit`: as read back where it compiled. `cache`: the setting,
    and the hits and misses of the compiler's cache. `hints`: the compiler's own.
    """

    frames_compiled: int = 0
    frames_fallen_back: int = 0
    compile_s: float | None = None
    cache: dict[str, Any] | None = None
    graph_breaks: list[dict[str, Any]] = field(default_factory=list)
    recompiles: list[dict[str, Any]] = field(default_factory=list)
    limits_hit: list[str | None] = field(default_factory=list)
    recompile_limit: int | None = None
    cudagraphs_skipped: str | None = None
    hints: list[str] = field(default_factory=list)
