"""Before ranks start: can a job's checkpoints be written, and is it theirs to go on from?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paceline.checkpoint.shelf import Manifest, Shelf, differing, find, read_manifest
from paceline.controller.directory import FROZEN
from paceline.controller.identity import work
from paceline.controller.plan import Job
from paceline.types import CheckpointError, ConfigError

MOST_NAMED = 5
"""Keys that a message names."""


def check(job: Job) -> None:
    """Make the job's checkpoint folder, and look at what the job would go on from.

    Raises ConfigError when the folder can't be written, when what `checkpoint.resume` asks for
    isn't there, or when it is of another training, or of a longer one.
    """
    settings = job.config["checkpoint"]
    if job.choices.get("checkpoint") == "off" or "resume" not in settings:
        return
    folder, asked = job.directory / "checkpoint", str(settings["resume"])
    _probe(folder)
    if asked == "off":
        return
    paths = Shelf(folder).committed()
    if not paths and asked == "required":
        raise ConfigError(
            [
                f"checkpoint.resume=required: {folder} holds no committed checkpoint; use "
                "checkpoint.resume=auto to start fresh"
            ]
        )
    if not paths and asked != "auto":
        try:
            paths = find(Path(asked))
        except CheckpointError as error:
            raise ConfigError([f"checkpoint.resume={asked}: {error}"]) from error
    for path in reversed(paths):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue  # the ranks set it aside and say so
        _fits(job, path, manifest)
        return


def another(job: Job, record: Mapping[str, Any]) -> bool:
    """Is the finished record in this job's directory that of other settings for the same training,
    so that this job goes on from its checkpoint? Raises ConfigError when it is another training."""
    if record["job"]["config_hash"] == job.config_hash:
        return False
    if record["job"]["work_hash"] != job.work_hash:
        frozen = job.directory / FROZEN
        theirs = yaml.safe_load(frozen.read_text()).get("identity", {}) if frozen.exists() else {}
        raise ConfigError(
            [
                f"hydra.run.dir={job.directory}: it holds the result of another training "
                f"({_named(job, theirs)}); choose another hydra.run.dir"
            ]
        )
    return True


def _probe(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"1")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            [
                f"{folder}: no checkpoint can be written there ({error.strerror}); make it "
                "writable, choose another hydra.run.dir, or checkpoint=off"
            ]
        ) from error


def _fits(job: Job, path: Path, manifest: Manifest) -> None:
    if manifest.identity.get("work_hash") != job.work_hash:
        raise ConfigError(
            [
                f"checkpoint.resume={job.config['checkpoint']['resume']}: {path} is of another "
                f"training ({_named(job, manifest.identity)}); set them as they were, choose "
                "another hydra.run.dir, or start from step 0 with checkpoint.resume=off"
            ]
        )
    steps = job.config["run"]["steps"]
    if manifest.step > steps:
        raise ConfigError(
            [
                f"run.steps={steps}: {path} has trained {manifest.step} already; raise it, choose "
                "another hydra.run.dir, or start from step 0 with checkpoint.resume=off"
            ]
        )


def _named(job: Job, theirs: Mapping[str, Any]) -> str:
    keys = differing({"work": work(job.config)}, theirs) if theirs.get("work") else []
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    return f"{', '.join(keys[:MOST_NAMED])}{more} differ" if keys else "what is trained differs"
