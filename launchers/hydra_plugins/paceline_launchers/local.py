"""hydra/launcher=local: every cell of a sweep in fresh processes on this machine, one at a time.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class LocalLauncher(Launcher):
    """Composes and checks all cells before the first one starts."""

    def __init__(self) -> None:
        self.config: DictConfig
        self.hydra_context: HydraContext

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.hydra_context = config, hydra_context

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from paceline.controller import sweep
        from paceline.controller.plan import Job

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        sweep_dir = Path(str(self.config.hydra.sweep.dir)).absolute()
        cells = sweep.Cells(problems=sweep.check_swept(job_overrides))
        planned: list[Any] = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            root = self._compose(list(overrides), number)
            directory = sweep_dir / str(root.hydra.sweep.subdir)
            planned.append((root, cells.add(root, directory, sweep_dir.name)))
        config = self.config
        rates = sweep.run_cells(
            cells,
            sweep_dir,
            config.sweep.on_failure,
            config.plan,
            before=lambda job: self._leave_trace(planned, job),
        )
        return [
            _returned(root, rates[job.name] if isinstance(job, Job) else job)
            for root, job in planned
        ]

    def _compose(self, overrides: list[str], number: int) -> DictConfig:
        root = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(root):
            root.hydra.job.id, root.hydra.job.num = f"job_id_{number}", number
        return root

    def _leave_trace(self, planned: list[Any], job: Any) -> None:
        """Have Hydra write `.hydra` (config, overrides) into the cell's directory."""
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
