"""profiler=schedule: torch.profiler over a few steps; a trace and a summary a cycle and rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from paceline.profiler.cycle import Cycle
from paceline.profiler.plan import Plan
from paceline.types import Context, at_least

SLOWEST = "slowest"


@dataclass(frozen=True)
class Schedule:
    """`max_trace_mb`: of a trace as JSON, which is what a viewer has to hold, in 10**6 bytes; the
    file is compressed and a tenth of that."""

    wait: int
    warmup: int
    active: int
    repeat: int
    activities: Literal["auto"] | list[Literal["cpu", "cuda"]]
    record_shapes: bool
    profile_memory: bool
    with_stack: bool
    with_flops: bool
    ranks: list[int | Literal["slowest"]]
    max_trace_mb: int

    def __post_init__(self) -> None:
        if self.wait < 1:
            raise ValueError(
                f"wait={self.wait}: the first step is checked before the second, and no trace "
                "should hold that; give 1 or more"
            )
        if self.warmup < 1:
            raise ValueError(
                f"warmup={self.warmup}: the first step of the warm-up shows how large a step's "
                "trace is; give 1 or more"
            )
        at_least(1, active=self.active, repeat=self.repeat, max_trace_mb=self.max_trace_mb)
        if not self.activities:
            raise ValueError("activities=[]: nothing would be recorded; give auto, or [cpu]")
        if not self.ranks:
            raise ValueError("ranks=[]: no rank would be traced; give [0], or use profiler=off")

    def open(
        self, context: Context, model: nn.Module, wrapped: nn.Module, slowest: Callable[[], int]
    ) -> Traced:
        return Traced(self, context, model, wrapped, slowest)


class Traced:
    """Every rank follows the same schedule, counted from the first step of this process, so that
    all ranks know which steps are disturbed; only some of them are traced.

    Whatever goes wrong with a trace is told, in the log and in `report`, and training goes on.
    """

    def __init__(
        self,
        settings: Schedule,
        context: Context,
        model: nn.Module,
        wrapped: nn.Module,
        slowest: Callable[[], int],
    ) -> None:
        self._settings, self._context = settings, context
        self._models, self._slowest = (model, wrapped), slowest
        self._length = settings.wait + settings.warmup + settings.active
        self._first: int | None = None
        self._step = 0
        self._settling = False
        self._cycle: Cycle | None = None
        self._cycles: list[dict[str, Any]] = []
        self._problems: list[str] = []
        self._reasons: list[str] = []

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *error: object) -> None:
        self._guarded(self._close)

    def begin(self, step: int) -> None:
        if self._first is None:
            self._first = step
            self._check_length(step)
        self._step = step
        number, place = divmod(step - self._first, self._length)
        if number < self._settings.repeat and place == self._settings.wait:
            chosen = self._chosen()  # a collective: outside of what may fail on one rank
            if self._context.world.rank in chosen:
                self._guarded(lambda: self._start(number, chosen))

    def tick(self) -> bool:
        assert self._first is not None
        number, place = divmod(self._step - self._first, self._length)
        within = number < self._settings.repeat and place >= self._settings.wait
        disturbed = within or self._settling
        # the step after a cycle waits for the rank that is still writing its trace
        self._settling = within and place == self._length - 1
        if self._cycle is not None:
            self._guarded(self._advance)
        return disturbed

    def report(self) -> dict[str, Any]:
        return {"cycles": self._cycles, "problems": self._problems, "reasons": self._reasons}

    def _chosen(self) -> dict[int, bool]:
        """The ranks to trace, and whether each is there for being the slowest. A collective."""
        ranks = {rank: False for rank in self._settings.ranks if isinstance(rank, int)}
        if SLOWEST in self._settings.ranks and not self._context.world.alone:
            ranks[self._slowest()] = True
        return ranks or {0: False}

    def _start(self, number: int, chosen: dict[int, bool]) -> None:
        settings, context = self._settings, self._context
        plan = Plan(
            settings=settings,
            world=context.world,
            directory=context.directory,
            number=number if settings.repeat > 1 else None,
            first=self._step,
            slowest=chosen[context.world.rank],
        )
        self._cycle = Cycle(plan, *self._models)
        self._cycle.start()

    def _advance(self) -> None:
        assert self._cycle is not None
        if self._cycle.tick():
            self._close()

    def _close(self) -> None:
        """End what is being recorded, and keep what it has by now."""
        cycle, self._cycle = self._cycle, None
        if cycle is None:
            return
        try:
            found = cycle.finish()
            if found is not None:
                self._cycles.append(found)
        finally:
            self._problems += cycle.problems

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            # a full disk, a driver that allows no profiling: the training is worth more
            self._say(
                f"rank {self._context.world.rank}: nothing more is recorded in this cycle of the "
                f"profiler, {type(error).__name__}: {error}"
            )
            if self._cycle is not None:
                self._cycle.abandon()
                self._cycle = None

    def _check_length(self, step: int) -> None:
        """A resumed run has fewer steps left than run.steps, which was checked."""
        settings, left = self._settings, self._context.run.steps - step
        whole = min(left // self._length, settings.repeat)
        if whole < settings.repeat:
            reason = (
                f"profiler: {left} steps are left from step {step} on, {whole} of "
                f"{settings.repeat} cycles of wait={settings.wait} + warmup={settings.warmup} + "
                f"active={settings.active} steps fit; lower profiler.wait, or raise run.steps"
            )
            self._reasons.append(reason)
            print(f"WARNING {reason}", flush=True)

    def _say(self, problem: str) -> None:
        self._problems.append(problem)
        print(f"WARNING {problem}", flush=True)
