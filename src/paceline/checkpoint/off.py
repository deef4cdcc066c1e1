"""checkpoint=off: nothing is saved, nothing is restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.types import Context, TrainState


@dataclass(frozen=True)
class Off:
    def open(self, context: Context) -> Nowhere:
        return Nowhere()


class Nowhere:
    def load(self, state: TrainState) -> int:
        return 0

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        return False

    def finish(self) -> None:
        return None

    def report(self) -> dict[str, Any]:
        return {"saves": [], "resumed_from": None}
