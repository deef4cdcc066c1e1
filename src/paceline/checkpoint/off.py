"""checkpoint=off: nothing is saved, nothing is restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.checkpoint.cadence import Cadence
from paceline.types import Context, TrainState


@dataclass(frozen=True)
class Off(Cadence):
    """Its settings stand for nothing: they are there to be set beside `-m checkpoint=off,sync`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume not in ("auto", "off"):
            raise ValueError(
                f"resume={self.resume}: checkpoint=off loads nothing; "
                "choose checkpoint=sync, dcp or async"
            )

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
