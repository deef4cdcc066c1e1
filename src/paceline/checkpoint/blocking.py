"""Saving while all ranks wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.checkpoint.cadence import Cadence
from paceline.checkpoint.cycle import Cycle
from paceline.types import Context, TrainState, World

Write = Callable[[dict[str, Any], Path, World], None]
"""(tree, place, world): all of it is on the disk when it returns. A collective; raises
CheckpointError on all ranks alike."""


class Blocking:
    """`format`: as in Manifest, of what `write` writes."""

    def __init__(self, settings: Cadence, context: Context, format: str, write: Write) -> None:
        self._cycle = Cycle(settings, context, format)
        self._world, self._write = context.world, write

    def load(self, state: TrainState) -> int:
        return self._cycle.load(state)

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        cycle = self._cycle
        if not cycle.due(step, now):
            return False
        began, save = time.perf_counter(), cycle.begin(step)
        state.fold()
        with cycle.resident:
            cycle.attempt(save, lambda: self._save(state, save, began))
        save["blocked_s"] = time.perf_counter() - began
        return True

    def finish(self) -> None:
        return None

    def report(self) -> dict[str, Any]:
        return self._cycle.report()

    def _save(self, state: TrainState, save: dict[str, Any], began: float) -> None:
        tree, place = self._cycle.stage(state, save["step"])
        self._write(tree, place, self._world)
        self._cycle.complete(save, began)
