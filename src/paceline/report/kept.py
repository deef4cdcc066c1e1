"""What lies on the shelf of a job: every checkpoint with its state, and whether one is whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.checkpoint import shelf
from paceline.checkpoint.shelf import Manifest, Shelf, step_of
from paceline.types import CheckpointError, ConfigError

MOST_LISTED = 12
ELSEWHERE = {
    shelf.STAGING: "incomplete",
    shelf.QUARANTINE: "quarantined",
    shelf.SUPERSEDED: "superseded",
}
"""Folder -> state of what lies in it."""


@dataclass(frozen=True)
class Row:
    """A checkpoint as `ls` shows it. `state`: committed, damaged (committed, but its manifest or
    the sizes of its files are wrong), incomplete, quarantined, superseded. `why`: what is damaged.
    `format`, `ranks` and `saved_at` are None without a manifest. `resume`: a resume takes it."""

    step: int | None
    state: str
    format: str | None
    bytes: int
    ranks: int | None
    saved_at: str | None
    resume: bool
    why: str | None
    path: str


@dataclass(frozen=True)
class Checked:
    """A checkpoint read to its last byte. `problems`: what is wrong with it, a sentence each."""

    step: int | None
    path: Path
    files: int
    bytes: int
    problems: list[str]


def rows(directory: Path) -> list[Row]:
    """A row for each checkpoint that a path means, whatever its state; by step. Raises
    CheckpointError when there is none at all."""
    found = [row for path in _all(directory) if (row := _row(path)) is not None]
    found.sort(key=lambda row: row.step or 0)
    good = [row for row in found if row.state == "committed"]
    return [replace(row, resume=row in good[-1:]) for row in found]


def check(path: Path) -> Checked:
    """Read all its bytes and hold them to its manifest."""
    try:
        manifest = shelf.read_manifest(path)
    except CheckpointError as error:
        return Checked(_step(path), path, 0, 0, [str(error)])
    wrong = shelf.problems(path, manifest, sorted(manifest.files), contents=True)
    return Checked(manifest.step, path, len(manifest.files), manifest.size, wrong)


def _all(directory: Path) -> list[Path]:
    if (directory / shelf.MANIFEST).exists() or shelf.STEP.match(directory.name):
        return [directory] if directory.is_dir() else shelf.find(directory)
    for folder in (directory / "checkpoint", directory):
        here = Shelf(folder)
        found = [*here.committed(), *here.staged(), *here.set_apart()]
        if found:
            return found
    return shelf.find(directory)  # which says why there is none


def _row(path: Path) -> Row | None:
    """None when the job that is running has just moved it."""
    state, why = ELSEWHERE.get(path.parent.name, "committed"), None
    manifest: Manifest | None = None
    try:
        manifest = shelf.read_manifest(path)
        wrong = shelf.problems(path, manifest, manifest.files, contents=False)
    except CheckpointError as error:
        wrong = [str(error)]
    if state == "committed" and wrong:
        state, why = "damaged", "; ".join(wrong)
    try:
        if (path / shelf.REASON).exists():
            why = (path / shelf.REASON).read_text().strip()
        size = manifest.size if manifest else sum(p.stat().st_size for p in path.iterdir())
    except FileNotFoundError:
        return None
    return Row(
        step=manifest.step if manifest else _step(path),
        state=state,
        format=manifest.format if manifest else None,
        bytes=size,
        ranks=manifest.world["world_size"] if manifest else None,
        saved_at=manifest.saved_at if manifest else None,
        resume=False,
        why=why,
        path=str(path),
    )


def _step(path: Path) -> int | None:
    """By its name; a copy may have another."""
    return step_of(path) if shelf.STEP.match(path.name) else None


def committed(directory: Path, step: int | None) -> list[Path]:
    """The oldest first; with `step`, that one alone."""
    found = shelf.find(directory)
    if step is None:
        return found
    steps = {_step(path): path for path in found}
    if step not in steps:
        there = [path.name if s is None else str(s) for s, path in steps.items()][-MOST_LISTED:]
        more = "..., " if len(steps) > MOST_LISTED else ""
        raise ConfigError(
            [f"--step {step}: {directory} has no committed one; there are {more}{', '.join(there)}"]
        )
    return [steps[step]]
