"""`slurm/jobs.json`, read: which job of a directory is which SLURM job; how far its files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.controller.directory import FROZEN
from paceline.controller.slurm.script import FOLDER, PHASE
from paceline.record.schema import read_json
from paceline.types import ConfigError

JOBS = "jobs.json"


@dataclass(frozen=True)
class Entry:
    """One job. `cell`: its directory. `phase`: the file in which its script says how far it is.
    `alone`: no other job shares its SLURM job."""

    name: str
    id: str
    log: Path
    cell: Path
    phase: Path
    alone: bool


@dataclass(frozen=True)
class Book:
    """What was submitted for `root`, a sweep's directory or a single job's. `collector`: the SLURM
    job that makes the table in the end."""

    root: Path
    entries: list[Entry]
    collector: str | None

    @property
    def ids(self) -> list[str]:
        """Of the SLURM jobs, each once."""
        return list(dict.fromkeys(entry.id for entry in self.entries))


def read_book(directory: Path) -> Book | None:
    """The submitted jobs of a sweep's or a job's directory; of a sweep's cell, that one alone.
    None: there are none. Raises ConfigError when the file can't be read."""
    root, only = directory.absolute(), None
    if not (root / FOLDER / JOBS).is_file() and (root / FROZEN).is_file():
        root, only = root.parent, root.name
    path = root / FOLDER / JOBS
    try:
        book = read_json(path)
        if book is None:
            return None
        is_job = (root / FROZEN).is_file()
        entries = [
            _entry(job, root if is_job else root / job["name"], root, book["mode"] != "allocation")
            for job in book["jobs"]
            if only in (None, job["name"])
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError([f"{path}: can't be read ({error!r}); submit the same again"]) from error
    return Book(root, entries, book["collector"])


def status_of(cell: Path) -> dict[str, Any]:
    """What a job's own status.json says; empty when it left none, or none that can be read."""
    return _section(cell / "status.json", "status")


def progress_of(cell: Path) -> dict[str, Any]:
    """How far the ranks were a moment ago: step, steps, units_per_s; empty before the first one."""
    try:
        return read_json(cell / "log" / "progress.json") or {}
    except (OSError, ValueError):
        return {}


def started_at(cell: Path) -> str | None:
    """When its controller started last, as status.json says."""
    said: str | None = _section(cell / "status.json", "job").get("started_at")
    return said


def _section(path: Path, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = (read_json(path) or {}).get(name) or {}
    except (OSError, ValueError):
        return {}
    return found


def _entry(job: dict[str, Any], cell: Path, root: Path, alone: bool) -> Entry:
    phase = (cell if alone else root) / FOLDER / PHASE
    return Entry(job["name"], str(job["id"]), Path(job["log"]), cell, phase, alone)
