"""hydra/launcher=local: the cells of a sweep in turn, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.controller.plan import Job
from paceline.controller.turns import Turns, in_turn


@dataclass(frozen=True)
class Here:
    """A `sweep.Way`. `before`: called with each cell as its turn comes."""

    on_failure: str
    before: Callable[[Job], None]
    submits = False

    def waiting(self, sweep_dir: Path) -> set[str]:
        return set()

    def show(self, jobs: list[Job], sweep_dir: Path, console: Console) -> None:
        """The plan says it all."""

    def run(self, turns: Turns, sweep_dir: Path, console: Console) -> dict[str, Any]:
        return in_turn(turns, self.on_failure, console, self.before)
