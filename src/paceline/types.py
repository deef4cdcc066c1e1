"""The words of the house: settings, protocols and errors. Imports no torch when the program runs.

Shapes: B = local micro-batch, T = sequence length. Units stand in names: `_s`, `_gib`, `_per_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Batch = Any
"""Any pytree of tensors with leading dimension B."""


class ConfigError(Exception):
    """The config cannot run. Holds every problem found, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


class Nonfinite(Exception):
    """A loss or a gradient norm is not a number; `step` is the first such step."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class DataError(Exception):
    """The data source cannot give what was asked for; says which rank and step."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; names the file."""


class Failed:
    """What a sweep gets from a job that has no valid rate: typed, printable, and not a number."""

    def __init__(self, state: str, kind: str | None, message: str) -> None:
        self.state, self.kind, self.message = state, kind, message

    def __float__(self) -> float:
        raise ValueError(f"this job has no rate: {self}")

    def __repr__(self) -> str:
        return f"Failed({self.state}, {self.kind}: {self.message})"


# ---------------------------------------------------------------- settings without a live object


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


# ---------------------------------------------------------------- facts


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


@dataclass(frozen=True)
class Context:
    """What a choice may know when it opens. `build` makes the object of a nested `_target_`."""

    world: World
    run: Run
    directory: Path
    build: Callable[..., Any]


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


# ---------------------------------------------------------------- protocols (live objects)


class Loss(Protocol):
    """`(model, batch) -> (sum [] f32, weight [] f32)`: the mean loss is sum / weight over all
    micro-batches and ranks. `fixed_weight`: every micro-batch has the same weight, so that no
    collective is needed to know the global one. Absent means False, which is always right."""

    fixed_weight: bool

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]: ...


class Data(Protocol):
    """An endless source of micro-batches for this rank. `sampling` is "seeded" when the samples of
    step k are a function of (seed, k) alone, else "own". Optional, for the record: `queued_batches`
    (held ready by loader workers), `workers_alive`, `samples` (one epoch), `global_batch_size`,
    `micro_batch_size`. Optional, for the loop: `prepare(batch)`, or None, is called on each batch
    once it is on the device, in training and in evaluation, and gives what the loss gets."""

    unit: str
    sampling: Literal["seeded", "own"]

    def count(self, batch: Batch) -> int:
        """Units in a batch."""
        ...

    def batches(self, first_step: int) -> Iterator[Batch]:
        """This rank's micro-batches from `first_step` on, `accumulation_steps` of them a step."""
        ...

    def held_out(self, batches: int) -> Iterator[Batch]:
        """This rank's share of `batches` held-out batches; the same ones at every call."""
        ...

    def num_batches(self) -> int | None:
        """Micro-batches this rank can give; None: endless."""
        ...

    def digest(self, micro_batches: int) -> int | None:
        """Sum mod 2**64 over the samples in the first `micro_batches` handed out, so that the
        digests of ranks add up to the digest of the job; None under `sampling=own`."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Compile(Protocol):
    """Compiles in place, so that state-dict keys stay as they were. `compare_eager`: measure eager
    steps beside compiled ones after the window."""

    compare_eager: bool

    def __call__(self, module: nn.Module) -> None: ...

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The same for the optimizer's step, before a scheduler is made for it."""
        ...

    def tick(self, step: int) -> bool:
        """After each step: was anything compiled in it? Cheap."""
        ...

    def explain(self, error: BaseException) -> str | None:
        """A compiler's error in a sentence: reason, place, way out; None for any other error."""
        ...

    def report(self) -> CompileReport: ...

    def close(self) -> None: ...


class Precision(Protocol):
    """Owns autocast, loss scaling and the optimizer step. `backward` stands in the loop.

    `skipped` [] bool on the device: the last step left the parameters as they were, because a
    gradient overflowed; None where that can't happen. Nobody may wait for it within the loop.
    """

    skipped: Tensor | None

    def prepare(self, model: nn.Module) -> None:
        """Convert a model that was just made, in place, before it is wrapped or compiled."""
        ...

    def forward(self) -> AbstractContextManager[Any]: ...

    def scale(self, loss: Tensor) -> Tensor: ...

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        """Clip, step; returns the global gradient norm [] f32 before clipping, None without."""
        ...

    def report(self) -> dict[str, Any]:
        """For the record, after the last step: `loss_scale`, None where there is none."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class CommHook(Protocol):
    def register(self, model: nn.Module) -> None: ...


class Strategy(Protocol):
    """Owns the order of placement, wrapping and compiling."""

    def wrap(
        self,
        model: nn.Module,
        world: World,
        compile: Compile,
        precision: Precision,
        comm_hook: CommHook,
    ) -> nn.Module: ...

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        """Around forward AND backward of a micro-batch; off on all but the last of a step."""
        ...


class Checkpoint(Protocol):
    def load(self, state: TrainState) -> int:
        """Restore the newest committed state in place; returns the step to go on from, 0: fresh."""
        ...

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        """Save when `step` is due or `now`; True if it saved. Returns when training may go on."""
        ...

    def finish(self) -> None: ...

    def report(self) -> dict[str, Any]:
        """The `checkpoint` section of the record."""
        ...


class Profiler(Protocol):
    def __enter__(self) -> Profiler: ...

    def __exit__(self, *error: object) -> None: ...

    def tick(self) -> bool:
        """After each step; True if the step that just ended was disturbed by the profiler."""
        ...

    def report(self) -> dict[str, Any]: ...


class Diagnose(Protocol):
    def explain(self, record: dict[str, Any]) -> dict[str, Any]:
        """The `diagnosis` section of a record."""
        ...
