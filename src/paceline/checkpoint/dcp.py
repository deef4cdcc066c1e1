"""checkpoint=dcp: every rank writes its shards with torch.distributed.checkpoint; all wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from paceline.checkpoint.blocking import Blocking
from paceline.checkpoint.cadence import Cadence
from paceline.checkpoint.reading import quiet
from paceline.checkpoint.together import unwrap
from paceline.checkpoint.writer import HashedWriter
from paceline.types import Context, World


@dataclass(frozen=True)
class Dcp(Cadence):
    def open(self, context: Context) -> Blocking:
        return Blocking(self, context, "dcp", write)


def write(tree: dict[str, Any], place: Path, world: World) -> None:
    quiet()
    try:
        save(tree, storage_writer=HashedWriter(place), no_dist=world.alone)
    except CheckpointException as error:
        unwrap(error)
