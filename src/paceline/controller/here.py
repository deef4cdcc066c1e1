"""hydra/launcher=local: the cells of a sweep in turn, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.controller.plan import Job
from paceline.controller.rules import elsewhere
from paceline.controller.rules.submitted import detached
from paceline.controller.turns import Turns, in_turn


@dataclass(frozen=True)
class Here:
    """A `sweep.Way`. `before`: called with each cell as its turn comes."""

    on_failure: str
    before: Callable[[Job], None]

    def problems(self, jobs: list[Job], sweep_dir: Path, dry: bool) -> list[str]:
        if jobs and detached(jobs[0].config):
            return detached(jobs[0].config)
        if any(elsewhere(job.config) for job in jobs):
            return [
                "launch.scheduler=slurm: a sweep on a cluster is hydra/launcher=slurm; add that"
            ]
        nnodes = next((n for j in jobs if (n := j.config["launch"]["nnodes"]) != 1), 1)
        if nnodes == 1:
            return []
        # the nodes of a sweep would have to take the same cell at the same time
        return [
            f"launch.nnodes={nnodes}: a sweep runs its cells on this node alone; run each by "
            "itself, one command a node and job, or hydra/launcher=slurm"
        ]

    def waiting(self, sweep_dir: Path) -> set[str]:
        return set()

    def show(self, jobs: list[Job], sweep_dir: Path, console: Console) -> None:
        """The plan says it all."""

    def run(self, turns: Turns, sweep_dir: Path, console: Console) -> dict[str, Any]:
        return in_turn(turns, self.on_failure, console, self.before)
