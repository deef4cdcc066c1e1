"""job.yaml, a planned job as a file: all that a rank ever reads, all that goes to a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from paceline.controller.directory import FROZEN
from paceline.controller.identity import work
from paceline.controller.plan import Job
from paceline.types import ConfigError

SAME = (
    *("config", "overrides", "choices", "cell", "requested", "repeat", "rerun", "sweep", "command"),
    *("source", "nudge", "digests"),
)
"""Fields of a Job that stand in the file by their own names."""


def freeze(job: Job, path: Path) -> Path:
    """Write it. Checkpoints lie in `directory`, on every node."""
    frozen: dict[str, Any] = {
        "name": job.name,
        "directory": str(job.directory),
        "identity": {
            "config_hash": job.config_hash,
            "work_hash": job.work_hash,
            "work": work(job.config),
        },
    }
    frozen |= {name: getattr(job, name) for name in SAME}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(yaml.safe_dump(frozen, sort_keys=False))
    os.replace(temporary, path)
    return path


def read_job(directory: Path) -> Job:
    """The job of a directory as it was frozen, wherever the directory lies by now. Raises
    ConfigError when there is none."""
    path = directory / FROZEN
    try:
        frozen: dict[str, Any] = yaml.safe_load(path.read_text())
        identity = frozen["identity"]
        return Job(
            directory=directory.absolute(),
            config_hash=identity["config_hash"],
            work_hash=identity["work_hash"],
            **{name: frozen[name] for name in SAME},
        )
    except FileNotFoundError as error:
        raise ConfigError(
            [f"{path} is missing: it describes the job to start; give a job's directory"]
        ) from error
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(
            [
                f"{path} can't be used ({type(error).__name__}: {error}); start the job again with "
                "this paceline, which writes it anew"
            ]
        ) from error
