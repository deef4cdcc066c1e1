"""What paceline's launchers share: compose and plan all cells, then run them some way."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class CellLauncher(Launcher):
    """Composes and checks all cells before the first one starts."""

    def __init__(self) -> None:
        self.config: DictConfig
        self.hydra_context: HydraContext
        self.planned: list[Any] = []

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.hydra_context = config, hydra_context

    @abstractmethod
    def way(self) -> Any:
        """How the cells are run: a controller.sweep.Way."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from paceline.controller import sweep
        from paceline.controller.plan import Job

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        sweep_dir = Path(str(self.config.hydra.sweep.dir)).absolute()
        cells = sweep.Cells(problems=sweep.check_swept(job_overrides))
        self.planned = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            root = self._compose(list(overrides), number)
            directory = sweep_dir / str(root.hydra.sweep.subdir)
            self.planned.append((root, cells.add(root, directory, sweep_dir.name)))
        rates = sweep.run_cells(cells, sweep_dir, self.config.plan, self.way())
        return [
            _returned(root, rates[job.name] if isinstance(job, Job) else job)
            for root, job in self.planned
        ]

    def _compose(self, overrides: list[str], number: int) -> DictConfig:
        root: DictConfig = self.hydra_context.config_loader.load_sweep_config(
            self.config, overrides
        )
        with open_dict(root):
            root.hydra.job.id, root.hydra.job.num = f"job_id_{number}", number
            self.settle(root)
        return root

    def settle(self, root: DictConfig) -> None:
        """Change what this launcher decides about every cell."""

    def leave_trace(self, job: Any) -> None:
        """Have Hydra write `.hydra` (config, overrides) into the cell's directory."""
        planned = self.planned
        root = next((r for r, j in planned if getattr(j, "directory", None) == job.directory), None)
        if root is not None:
            run_job(
                task_function=lambda config: None,
                config=root,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=self.hydra_context,
            )


def _returned(root: DictConfig, value: Any) -> JobReturn:
    returned = JobReturn(
        overrides=list(root.hydra.overrides.task),
        cfg=root,
        hydra_cfg=root,
        working_dir=str(root.hydra.sweep.dir),
        task_name="paceline",
        status=JobStatus.COMPLETED,
    )
    returned.return_value = value
    return returned
