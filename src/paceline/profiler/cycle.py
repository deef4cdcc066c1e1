"""One cycle of the schedule on one rank: how large is a step, warm up, record, write."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerAction

from paceline.profiler import files, summary
from paceline.profiler.layers import Layers
from paceline.profiler.plan import Plan

MARGIN = 0.9
"""Of max_trace_mb that is planned for: no two steps have exactly the same events."""

LESS = "have fewer active steps, no stacks and no shapes, or raise profiler.max_trace_mb"


class Cycle:
    """`start`, `tick` after each step until it says that this was the last, then `finish`.

    The first step of the warm-up is recorded by itself: the size of its trace says how many steps
    fit into `max_trace_mb`, before more are recorded, so that neither the profiler's memory nor
    the file can grow beyond it. The layers are marked for as long as this goes on.
    """

    def __init__(self, plan: Plan, model: nn.Module, wrapped: nn.Module) -> None:
        self._plan = plan
        self._layers = Layers(model, wrapped)
        self._profile, self._does = plan.make(ProfilerAction.RECORD, plan.first)
        self._running = False
        self._ticks, self._active = 0, plan.settings.active
        self.problems: list[str] = []

    def start(self) -> None:
        self._layers.mark()
        self._profile.start()
        self._running = True

    def tick(self) -> bool:
        """After each step; True: all that was to be recorded is."""
        self._ticks += 1
        warmup = self._plan.settings.warmup
        if self._ticks == 1:
            self._stop()
            self._active = self._fitting(files.size_of(self._profile, self._raw()))
            action = ProfilerAction.WARMUP if warmup > 1 else ProfilerAction.RECORD
            self._profile, self._does = self._plan.make(action, self._plan.first + 1)
            self._profile.start()
            self._running = True
            return False
        if self._recorded == self._active:
            return True
        if self._ticks == warmup:
            self._does[0] = ProfilerAction.RECORD
        self._profile.step()
        return False

    def finish(self) -> dict[str, Any] | None:
        """Stop and write. What was written and what not, for the record; None if no step was
        recorded."""
        self._layers.unmark()
        self._stop()
        if self._recorded <= 0:
            return None
        plan, start = self._plan, time.perf_counter()
        folder = plan.directory / "trace"
        folder.mkdir(parents=True, exist_ok=True)
        first = plan.first + plan.settings.warmup
        found: dict[str, Any] = {
            "rank": plan.world.rank,
            "slowest": plan.slowest,
            "steps": list(range(first, first + self._recorded)),
            "asked_steps": plan.settings.active,
            "trace": None,
            "trace_bytes": None,
            "compressed_bytes": None,
            "tensorboard": None,
        }
        # the summary first: it is small, and a trace that can't be kept leaves it
        whole = summary.summarise(self._profile, self._layers, plan, found)
        found["top"] = summary.top(whole)
        memory = whole["memory"]
        found["growth_bytes_per_step"] = memory and memory["growth_bytes_per_step"]
        found |= self._write_trace(folder / f"{plan.name}.json.gz")
        whole |= {key: found[key] for key in ("trace", "trace_bytes", "compressed_bytes")}
        found |= summary.write(folder / plan.name, whole, self._profile)
        found["write_s"] = time.perf_counter() - start
        return found

    def abandon(self) -> None:
        """After an error: leave nothing running and no mark behind."""
        self._layers.unmark()
        if self._running:
            self._running = False
            self._profile.stop()

    @property
    def _recorded(self) -> int:
        return self._ticks - self._plan.settings.warmup

    def _raw(self) -> Path:
        return self._plan.directory / "trace" / f".{self._plan.name}.json"

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self._profile.stop()

    def _fitting(self, step_bytes: int) -> int:
        """Steps that may be recorded, where one has a trace of so many bytes."""
        settings = self._plan.settings
        fitting = int(MARGIN * settings.max_trace_mb * 1e6 / step_bytes)
        if fitting >= settings.active:
            return settings.active
        steps = max(1, fitting)
        self._say(
            f"a step's trace takes {step_bytes / 1e6:.3g} MB, profiler.active={settings.active} "
            f"of them would pass profiler.max_trace_mb={settings.max_trace_mb}: {steps} "
            f"step{'' if steps == 1 else 's'} recorded; {LESS}"
        )
        return steps

    def _write_trace(self, path: Path) -> dict[str, Any]:
        """Nothing of a trace that is larger than was foreseen, or that the disk doesn't take."""
        limit = self._plan.settings.max_trace_mb
        try:
            written = files.write_trace(self._profile, path, self._raw(), int(limit * 1e6))
        except files.TooLarge as error:
            self._say(
                f"the trace takes {error.size / 1e6:.3g} MB, more than profiler.max_trace_mb="
                f"{limit}: it is not kept, its summary is; {LESS}"
            )
            return {}
        except OSError as error:
            self._say(f"the trace was not written, {error}; its summary doesn't need it")
            return {}
        found: dict[str, Any] = {"trace": f"trace/{path.name}", **written}
        try:
            found["tensorboard"] = files.for_tensorboard(path, self._plan.world.rank)
        except OSError as error:
            self._say(f"no copy for TensorBoard in tb/, {error}")
        return found

    def _say(self, problem: str) -> None:
        text = f"profiler, rank {self._plan.world.rank}: {problem}"
        self.problems.append(text)
        print(f"WARNING {text}", flush=True)
