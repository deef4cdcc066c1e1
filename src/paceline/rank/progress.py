"""A few lines of state for whoever watches: step, loss, rate, share of time waiting for data."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import torch

from paceline.types import World

EVERY_S = 0.5


class Progress:
    """Rank 0 rewrites one small file twice a second. On a GPU the loss arrives a report late:
    it is copied without waiting, and read the next time."""

    def __init__(self, directory: Path, world: World, steps: int) -> None:
        self._path = directory / "log" / "progress.json"
        self._steps = steps
        self._next = float("inf") if world.rank else 0.0
        self._on_gpu = world.device.type == "cuda"
        self._host_loss = torch.zeros((), pin_memory=self._on_gpu)
        self._arrives: torch.cuda.Event | None = None
        self._last = (0, time.perf_counter())

    def due(self) -> bool:
        return time.perf_counter() >= self._next

    def end(self) -> None:
        """Nothing more is due: what comes now isn't the training."""
        self._next = float("inf")

    def report(self, step: int, units: int, loss: torch.Tensor, wait_share: float | None) -> bool:
        """`step` done, `units` so far over all ranks, `loss` [] of the step on this rank,
        `wait_share` of the time since the last report spent waiting for data. False when the
        loss that was read is not a number."""
        now = time.perf_counter()
        last_units, last_time = self._last
        shown = self._read(loss)
        account = {
            "step": step,
            "steps": self._steps,
            "loss": shown,
            "units_per_s": (units - last_units) / max(now - last_time, 1e-9),
            "data_wait_share": wait_share,
        }
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(account))
        os.replace(temporary, self._path)
        self._last = (units, now)
        self._next = now + EVERY_S
        return shown is None or math.isfinite(shown)

    def _read(self, loss: torch.Tensor) -> float | None:
        if not self._on_gpu:
            return float(loss)
        arrived = self._arrives is not None and self._arrives.query()
        shown = float(self._host_loss) if arrived else None
        self._host_loss.copy_(loss, non_blocking=True)
        self._arrives = torch.cuda.Event()
        self._arrives.record()
        return shown
