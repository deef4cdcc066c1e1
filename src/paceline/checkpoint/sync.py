"""checkpoint=sync: rank 0 writes the whole state with torch.save while all ranks wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint.blocking import Blocking
from paceline.checkpoint.cadence import Cadence
from paceline.checkpoint.reading import WHOLE
from paceline.checkpoint.state import whole
from paceline.checkpoint.together import gather, together
from paceline.checkpoint.writer import save_whole
from paceline.types import Context, World


@dataclass(frozen=True)
class Sync(Cadence):
    def open(self, context: Context) -> Blocking:
        return Blocking(self, context, "torch", write)


def write(tree: dict[str, Any], place: Path, world: World) -> None:
    gathered = whole(tree)
    ranks = gather(gathered["ranks"], world)
    gathered["ranks"] = {rank: own for one in ranks for rank, own in one.items()}
    together(world, None, lambda: None if world.rank else save_whole(gathered, place / WHOLE))
