"""Hydra's callbacks: check everything before Hydra makes a directory.

Hydra turns an exception in a callback into a warning, so a refusal leaves by SystemExit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paceline.controller.plan import make_job
from paceline.controller.problems import typed_in
from paceline.controller.refusal import print_problems, typed_problems
from paceline.controller.rules import elsewhere
from paceline.controller.rules.submitted import detached
from paceline.controller.session import EXIT_CONFIG, SESSION
from paceline.controller.show import print_plan
from paceline.report.terminal import screen
from paceline.types import ConfigError


class Hooks(Callback):
    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        directory, wrong = _directory(config, "hydra.run.dir")
        try:
            job = make_job(config, directory, command=SESSION.command)
        except ConfigError as error:
            _refuse([*error.problems, *wrong])
        wrong += detached(job.config)
        if wrong:
            _refuse(wrong)
        if config.plan:
            print_plan([job], [])
            if elsewhere(job.config):
                from paceline.controller.slurm.way import print_script

                print_script(job, screen())
            raise SystemExit(0)
        _make(directory, "hydra.run.dir")
        SESSION.job = job

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        directory, wrong = _directory(config, "hydra.sweep.dir")
        if wrong:
            _refuse([*typed_problems(typed_in(config)), *wrong])
        SESSION.sweep_dir = directory
        new = [p for p in (directory, *directory.parents) if not p.exists()]
        SESSION.held.callback(_remove_empty, new)
        _make(directory, "hydra.sweep.dir")


def _refuse(problems: list[str]) -> NoReturn:
    print_problems(problems)
    raise SystemExit(EXIT_CONFIG)


def _directory(config: DictConfig, key: str) -> tuple[Path, list[str]]:
    """Where Hydra would write, and why it can't."""
    try:
        path = Path(str(OmegaConf.select(config, key))).absolute()
    except OmegaConfBaseException as error:
        return Path(), [f"{key}: {str(error).splitlines()[0]}; give a path"]
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not there.is_dir():
        return path, [f"{key}={path}: {there} is a file; choose another directory"]
    if not os.access(there, os.W_OK | os.X_OK):
        return path, [f"{key}={path}: {there} can't be written; choose another directory"]
    if max(len(os.fsencode(part)) for part in path.parts) > 255:
        return path, [f"{key}={path}: a name in it is longer than 255 bytes; choose a shorter one"]
    return path, []


def _make(path: Path, key: str) -> None:
    """As Hydra would in a moment, but with a way out where it can't be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _refuse([f"{key}={path}: it can't be made ({error.strerror}); choose another directory"])


def _remove_empty(directories: list[Path]) -> None:
    """Hydra makes a sweep's directory before the launcher can refuse or plan: leave none behind."""
    for directory in directories:
        with suppress(OSError):  # not there, or by now somebody else's
            left = list(directory.iterdir())
            if [p.name for p in left] == ["multirun.yaml"]:
                left[0].unlink()
            directory.rmdir()
