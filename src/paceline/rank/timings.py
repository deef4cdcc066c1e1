"""How long backward waits for the other ranks: by DDP's own timers, read now and then.

On a CPU DDP times every step, for less than a microsecond, and a reading costs 20 us, in one of
eight steady steps. On a CUDA device it times one step in a hundred, as it does anyway: there its
own reading waits for the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.types import CommHook, World

READ_EVERY = 8
EVERY_ON_CUDA = 100
FIRST = 10
"""DDP's own default, and the first steps, which it times in any case."""

EXACT = 10_000
"""Timed steps up to which DDP's averages, whole nanoseconds each rounded down, give the sum so far;
beyond, rounding would add up, and the newest step stands for those since the last reading."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """Seconds, [steps] each: those between two readings share what they took together. exposed_s:
    from the last gradient that is ready to the last that is averaged, in which backward waits.
    compute_s: backward before that; overlap_s: of it, with communication under way."""

    exposed_s: Floats
    overlap_s: Floats
    compute_s: Floats


class Timings:
    """`tick()` after each step of the process; `read` gives None where nothing is timed."""

    def __init__(self, model: nn.Module, comm_hook: CommHook, world: World) -> None:
        self._ddp: DistributedDataParallel | None = None
        if isinstance(model, DistributedDataParallel) and not world.alone:
            self._ddp = model
        self._hook = comm_hook
        self._every = 1 if world.device.type == "cpu" else EVERY_ON_CUDA
        self._ticks, self._again = 0, False
        self._rows = [np.zeros(6)]  # steps, timed, and sums so far: comm overlap compute waited
        if self._ddp is not None:
            self._ddp._set_ddp_runtime_logging_sample_rate(self._every)

    def tick(self, disturbed: bool) -> None:
        """`disturbed`: the step isn't one of the steady state, so that it shares with none. DDP
        tells of a step in the next one."""
        self._ticks += 1
        due = disturbed or self._again or self._ticks % READ_EVERY == 0
        self._again = disturbed
        if due and self._ddp is not None:
            self._look(self._ddp)

    def read(self, steps: int) -> Timed | None:
        """Of the first `steps` steps of this process."""
        if self._ddp is None:
            return None
        self._look(self._ddp)
        rows = np.array(self._rows)
        if not rows[-1, 2]:
            return None
        known = np.minimum(np.arange(steps), rows[-1, 0] - 1)  # the last one is like its neighbour
        comm, overlap, compute, waited = (
            np.interp(known + 1, rows[:, 0], sums) - np.interp(known, rows[:, 0], sums)
            for sums in rows[:, 2:].T
        )
        # what a hook waits for in backward, DDP takes for computing with communication under way
        return Timed(
            (comm - overlap).clip(0) + waited,
            (overlap - waited).clip(0),
            (compute - waited).clip(0),
        )

    def _look(self, ddp: DistributedDataParallel) -> None:
        assert ddp.logger is not None
        found: dict[str, Any] = ddp.logger._get_ddp_logging_data().ints_map
        before, steps = self._rows[-1], found.get("iteration", 0)
        if steps == before[0]:
            return
        timed = steps
        if self._every > 1:
            timed = min(steps, FIRST) + max(steps // self._every - FIRST // self._every, 0)
        newest = np.array([found.get(name, 0) for name in _NAMES]) / 1e9
        average = np.array([found.get(f"avg_{name}", 0) for name in _NAMES]) / 1e9
        # steps that weren't timed are taken for like those that were
        rounded = timed > EXACT
        sums = before[2:5] + newest * (steps - before[0]) if rounded else average * steps
        waited = getattr(self._hook, "waited_s", 0.0)
        self._rows.append(np.array([steps, timed, *sums, waited]))


_NAMES = ("backward_comm_time", "backward_compute_comm_overlap_time", "backward_compute_time")
