"""Composed config -> checked, resolved Job: identity, directory, rules between groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from paceline.controller.identity import cell_name, config_hash, trial_hash, work_hash
from paceline.controller.problems import examine, typed_in
from paceline.controller.rules import broken_here, elsewhere, local_world_size, world_size
from paceline.controller.rules.device import on_cuda
from paceline.controller.scaling import effective, section
from paceline.record.environment import cores, scheduled
from paceline.types import ConfigError


class CannotRun(ConfigError):
    """Well-formed, but its choices don't go together: skipped in a sweep, exit 2 alone."""

    def __init__(self, problems: list[str], job: Job) -> None:
        super().__init__(problems)
        self.job = job


@dataclass(frozen=True)
class Job:
    """One job, ready to run. `config` is resolved and plain, with the batch and the learning rate
    that `scaling` makes of what was typed; `cell` is its name without repeat."""

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
    command: str = ""  # what was typed
    source: dict[str, Any] | None = None  # of the code, when it was submitted
    nudge: dict[str, Any] | None = None  # of a nudged baseline: number, dtype
    digests: bool = False  # of a drill: its ranks write down what they restored

    @property
    def name(self) -> str:
        return self.directory.name

    def section(self) -> dict[str, Any]:
        """The `job` section of the record, without the start time."""
        return {
            "id": f"{self.config_hash}-r{self.repeat}",
            "name": self.name,
            "dir": str(self.directory),
            "overrides": self.overrides,
            "config_hash": self.config_hash,
            "trial_hash": trial_hash(self.config),
            "work_hash": self.work_hash,
            "sweep": self.sweep,
            "repeat": self.repeat,
            "tag": self.config["tag"],
            "seed": self.config["run"]["seed"],
            "command": self.command,
            "rerun": self.rerun,
            "nudge": self.nudge,
        } | scheduled()


def cell_directory(*, _root_: DictConfig) -> str:
    """The resolver `${paceline.cell:}`: a job's directory name. Never raises: Hydra asks before
    the config is checked."""
    try:
        config: Any = {
            key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
            for key, node in _root_.items()
            if key != "hydra"
        }
        choices: Any = OmegaConf.to_container(_root_.hydra.runtime.choices)
        return f"{cell_name(choices, config)}-r{config['repeat']}"
    except Exception:
        return "unresolved"


def make_job(root: DictConfig, directory: Path, sweep: str | None = None, command: str = "") -> Job:
    """Check a composed config (with Hydra's node) and everything about it that can be known
    before a process starts. `directory`: where the job lives; `command`: what was typed.

    Raises ConfigError with every problem found; CannotRun when only rules between groups fail.
    """
    found = examine(root)
    if found.problems:
        # in a sweep, what only breaks a rule is skipped
        raise ConfigError([*found.problems, *([] if sweep else found.broken)])
    config, choices = found.config, found.choices
    ranks = world_size(config, choices)
    frozen = effective(config, ranks)
    job = Job(
        config=frozen,
        overrides=typed_in(root),
        choices=choices,
        cell=cell_name(choices, config),
        directory=directory.absolute(),
        requested=_requested(config, choices, ranks) | {"scaling": section(config, ranks)},
        config_hash=config_hash(config),
        work_hash=work_hash(frozen),
        repeat=config["repeat"],
        sweep=sweep,
        command=command,
    )
    if found.broken:
        raise CannotRun(found.broken, job)
    return job


def _requested(config: dict[str, Any], choices: dict[str, Any], ranks: int) -> dict[str, Any]:
    loader = config["data"].get("loader") or {}
    return {
        **_of_the_host(config, ranks),
        "world_size": ranks,
        "nnodes": ranks // local_world_size(config, ranks),
        "host_memory": config["launch"]["host_memory"],
        "compile": choices.get("compile"),
        "precision": choices.get("precision"),
        "activation_checkpointing": choices.get("activation_checkpointing"),
        "strategy": choices.get("strategy"),
        "data": {"option": choices.get("data"), "num_workers": loader.get("num_workers")},
        "checkpoint": {
            "option": choices.get("checkpoint"),
            "every_steps": config["checkpoint"].get("every_steps"),
            "mtbf_s": config["checkpoint"].get("mtbf_s"),
        },
    }


def on_this_node(job: Job, endpoint: str | None) -> Job:
    """A job that was planned for a cluster, on one of its nodes. `endpoint`: where they meet.

    Raises ConfigError when this node, or what SLURM gave, is not what was planned.
    """
    ranks = job.requested["world_size"]
    launch = job.config["launch"] | {"scheduler": "none", "rdzv_endpoint": endpoint}
    config = job.config | {"launch": launch}
    problems = broken_here(config, job.choices, ranks)
    here = _of_the_host(config, ranks)
    if job.requested["device"] == "cuda" != here["device"]:
        asked = launch["slurm"]["gpus_per_node"]
        problems.append(
            f"launch.slurm.gpus_per_node={asked}: torch sees no CUDA device on this node; use a "
            "torch that is built for it, or run.device=cpu"
        )
    if problems:
        raise ConfigError(problems)
    return replace(job, config=config, requested=job.requested | here)


def _of_the_host(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What hangs on the machine that runs the job; under a scheduler, as far as it is known."""
    asked, threads = config["run"]["device"], config["launch"]["threads_per_rank"]
    if threads == "auto" and not elsewhere(config):
        threads = max(1, cores() // local_world_size(config, ranks))
    found = "cuda" if on_cuda(config) else "cpu"
    return {"device": found if asked == "auto" else asked, "threads_per_rank": threads}
