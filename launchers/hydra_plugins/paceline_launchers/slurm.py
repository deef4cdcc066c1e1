"""hydra/launcher=slurm: the cells of a sweep as jobs of a cluster, or in turn inside of one job.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from typing import Any

from hydra_plugins.paceline_launchers._launcher import CellLauncher
from omegaconf import DictConfig


class SlurmLauncher(CellLauncher):
    """`mode`: jobs (a SLURM job for each cell, with its own resources) or allocation (one for all
    cells, on the same nodes). `max_in_flight`: jobs that may run at a time; null: no limit."""

    def __init__(self, mode: str, max_in_flight: Any) -> None:
        super().__init__()
        self.mode, self.max_in_flight = mode, max_in_flight

    def settle(self, root: DictConfig) -> None:
        root.launch.scheduler = "slurm"

    def way(self) -> Any:
        from paceline.controller.slurm.way import Cluster

        config = self.config
        return Cluster(self.mode, self.max_in_flight, config.detach, self.leave_trace)
