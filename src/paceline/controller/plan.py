"""Composed config -> checked, resolved Job: identity, directory, rules between groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paceline import config as checker
from paceline.controller.identity import cell_name, config_hash, work_hash
from paceline.controller.rules import broken_rules
from paceline.types import ConfigError


class CannotRun(ConfigError):
    """Well-formed, but its choices don't go together: skipped in a sweep, exit 2 alone."""

    def __init__(self, problems: list[str], job: Job) -> None:
        super().__init__(problems)
        self.job = job


@dataclass(frozen=True)
class Job:
    """One job, ready to run. `config` is resolved and plain; `cell` is its name without repeat."""

    config: dict[str, Any]
    overrides: list[str]
    choices: dict[str, Any]
    cell: str
    directory: Path
    requested: dict[str, Any]
    config_hash: str
    work_hash: str
    repeat: int
    rerun: int = 0
    sweep: str | None = None

    @property
    def name(self) -> str:
        return self.directory.name

    def section(self, command: str) -> dict[str, Any]:
        """The `job` section of the record, without the start time."""
        return {
            "id": f"{self.config_hash}-r{self.repeat}",
            "name": self.name,
            "dir": str(self.directory),
            "overrides": self.overrides,
            "config_hash": self.config_hash,
            "work_hash": self.work_hash,
            "sweep": self.sweep,
            "repeat": self.repeat,
            "tag": self.config["tag"],
            "seed": self.config["run"]["seed"],
            "command": command,
            "rerun": self.rerun,
        }


def plain(root: DictConfig) -> dict[str, Any]:
    """The resolved config without Hydra's node. Raises ConfigError naming every leaf that can't
    be resolved or is missing."""
    config, problems = {}, []
    for key in root:
        if key == "hydra":
            continue
        try:
            value = root[key]
            is_node = OmegaConf.is_config(value)
            config[str(key)] = OmegaConf.to_container(value, resolve=True) if is_node else value
        except OmegaConfBaseException:
            problems += _unresolved(root, str(key))
    if problems:
        raise ConfigError(problems)
    return config


def cell_directory(*, _root_: DictConfig) -> str:
    """The resolver `${paceline.cell:}`: a job's directory name. Never raises: Hydra asks before
    the config is checked."""
    try:
        config = plain(_root_)
        choices = OmegaConf.to_container(_root_.hydra.runtime.choices)
        assert isinstance(choices, dict)
        return f"{cell_name(choices, config)}-r{config['repeat']}"  # type: ignore[arg-type]
    except Exception:
        return "unresolved"


def make_job(root: DictConfig, directory: Path, sweep: str | None = None) -> Job:
    """Check a composed config (with Hydra's node) and everything about it that can be known
    before a process starts. `directory`: where the job lives.

    Raises ConfigError with every problem found; CannotRun when only rules between groups fail.
    """
    config = plain(root)
    choices: Any = OmegaConf.to_container(root.hydra.runtime.choices)
    problems = checker.check(config)
    if problems:
        raise ConfigError(problems)
    problems = _dry_build(config)
    if problems:
        raise ConfigError(problems)
    world_size = _world_size(config, choices)
    job = Job(
        config=config,
        overrides=[str(o) for o in root.hydra.overrides.task],
        choices=choices,
        cell=cell_name(choices, config),
        directory=directory.absolute(),
        requested=_requested(config, choices, world_size),
        config_hash=config_hash(config),
        work_hash=work_hash(config),
        repeat=config["repeat"],
        sweep=sweep,
    )
    problems = broken_rules(config, choices, world_size)
    if problems:
        raise CannotRun(problems, job)
    return job


def _requested(config: dict[str, Any], choices: dict[str, Any], world_size: int) -> dict[str, Any]:
    threads = config["launch"]["threads_per_rank"]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    loader = config["data"].get("loader") or {}
    return {
        "device": _device(config["run"]["device"]),
        "world_size": world_size,
        "threads_per_rank": max(1, cores() // local) if threads == "auto" else threads,
        "host_memory": config["launch"]["host_memory"],
        "compile": choices.get("compile"),
        "precision": choices.get("precision"),
        "strategy": choices.get("strategy"),
        "data": {"option": choices.get("data"), "num_workers": loader.get("num_workers")},
        "checkpoint": {
            "option": choices.get("checkpoint"),
            "every_steps": config["checkpoint"].get("every_steps"),
        },
    }


def _device(asked: str) -> str:
    import torch

    found = "cuda" if torch.cuda.is_available() else "cpu"
    return found if asked == "auto" else asked


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _world_size(config: dict[str, Any], choices: dict[str, Any]) -> int:
    """Ranks of the job: launch.nproc, where auto means 1 for strategy=single, else one a device,
    or 2 on a CPU; under an outer torchrun what that started."""
    nproc = config["launch"]["nproc"]
    if nproc != "auto":
        return int(nproc)
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if choices.get("strategy") == "single":
        return 1
    if config["run"]["device"] != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count()
    return 2


def _dry_build(config: dict[str, Any]) -> list[str]:
    """Value checks that only the class itself knows, on a parameter of one element."""
    import dataclasses

    import torch

    optimizer = config["optimizer"]
    given: dict[str, Any] = {"params": [torch.nn.Parameter(torch.zeros(1))]}
    for key in ("optimizer", "scheduler"):
        if dataclasses.is_dataclass(checker.locate(config[key]["_target_"])):
            return []  # checked by its own __post_init__; opening it needs a real context
        try:
            optimizer = checker.build(config[key], **given)
        except Exception as error:
            cause = error.__cause__ or error
            return [
                f"{key}: {str(cause).splitlines()[0]} ({key}._target_={config[key]['_target_']})"
            ]
        given = {"optimizer": optimizer}
    return []


def _unresolved(root: DictConfig, top: str) -> list[str]:
    """A sentence for each leaf below `top` that is missing or whose interpolation fails."""
    problems: list[str] = []

    def walk(path: str, node: Any) -> None:
        keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
        for key in keys:
            where = f"{path}.{key}"
            try:
                value = node[key]
            except OmegaConfBaseException as error:
                said = str(error).splitlines()[0]
                missing = "Missing mandatory value" in said
                way = f"missing; give it a value: {where}=..." if missing else said
                problems.append(f"{where}: {way}")
                continue
            if OmegaConf.is_config(value):
                walk(where, value)

    try:
        value = root[top]
        if OmegaConf.is_config(value):
            walk(top, value)
    except OmegaConfBaseException as error:
        problems.append(f"{top}: {str(error).splitlines()[0]}")
    return problems
