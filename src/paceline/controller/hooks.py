"""Hydra's callbacks: check everything before Hydra makes a directory.

Hydra turns an exception in a callback into a warning, so a refusal leaves by SystemExit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from paceline.controller.plan import make_job
from paceline.controller.refusal import print_problems
from paceline.controller.session import EXIT_CONFIG, SESSION
from paceline.controller.show import print_plan
from paceline.types import ConfigError


class Hooks(Callback):
    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            job = make_job(config, Path(str(config.hydra.run.dir)))
        except ConfigError as error:
            print_problems(error.problems)
            raise SystemExit(EXIT_CONFIG) from None
        if config.plan:
            print_plan([job], [])
            raise SystemExit(0)
        SESSION.job = job

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        SESSION.sweep_dir = Path(str(config.hydra.sweep.dir)).absolute()
        SESSION.sweep_dir_was_there = SESSION.sweep_dir.exists()
