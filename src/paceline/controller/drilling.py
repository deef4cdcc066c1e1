"""Which runs a drill makes, and what each is held to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.checkpoint import shelf
from paceline.controller.certificate import Base, Entry, entry, settle_samples
from paceline.controller.drilled import Ran, another_world, cannot, derived, run_derived
from paceline.controller.plan import Job
from paceline.record.digests import digests
from paceline.record.schema import RAN, read_json
from paceline.types import ConfigError


@dataclass(frozen=True)
class Drill:
    """`ranks`: as many as saved the checkpoint at `path`. `place`: of the runs."""

    job: Job
    path: Path
    ranks: int
    steps: int
    place: Path
    console: Console

    def run(self, world: int | None) -> tuple[list[Entry], list[str]]:
        """The runs' parts of the certificate, and what could not be run. `world`: the other number
        of ranks that was asked for."""
        tree = _read(self.path)
        problems = cannot(self.job, self.ranks)
        other, why = (world, []) if world is not None else another_world(self.job, self.ranks)
        if world == self.ranks:
            problems.append(f"--world {world}: as many saved it and are run anyway; give another")
        elif world is not None:
            problems += cannot(self.job, world)
        if problems:
            raise ConfigError(problems)
        if tree["position"]["samples"] is None:
            other, why = None, ["the data source does its own sampling: other ranks can't share it"]
        files = digests(tree)
        entries, base, last = self._as_saved(tree, files)
        if other is not None and base is not None:
            run = self._go("another world", other, self.path, self._first, last)
            entries.append(entry(run, self.path.name, files, base, self.ranks))
        settle_samples(entries)
        reasons = [f"another number of ranks: {problem}" for problem in why]
        return entries, reasons

    @property
    def _first(self) -> int:
        return shelf.step_of(self.path)

    def _as_saved(
        self, tree: dict[str, Any], files: dict[str, str]
    ) -> tuple[list[Entry], Base | None, int]:
        """In as many ranks as saved it: the entries, the uninterrupted training, and up to which
        step other runs can be compared with it; no training where it broke off."""
        first, middle = self._first, self._first + self.steps
        record = read_json(self.job.directory / "result.json")
        if record is not None and _goes_on(record, tree, middle):
            base = Base(record, "the job's own record")
            run = self._go("as saved", self.ranks, self.path, first, middle)
            return [entry(run, self.path.name, files, base, self.ranks)], base, middle
        last = middle + self.steps
        whole = self._go("uninterrupted", self.ranks, self.path, first, last, every=middle)
        entries = [entry(whole, self.path.name, files, None, self.ranks)]
        if whole.record["status"]["state"] not in RAN:
            return entries, None, last
        base = Base(whole.record, "the uninterrupted run")
        saved = whole.checkpoint / f"step_{middle:08d}"
        again = digests(_read(saved))
        run = self._go("interrupted", self.ranks, saved, middle, last)
        entries.append(entry(run, f"{saved.name}, saved by the drill", again, base, self.ranks))
        return entries, base, last

    def _go(
        self, name: str, ranks: int, resume: Path, first: int, last: int, every: int | None = None
    ) -> Ran:
        who = "1 rank" if ranks == 1 else f"{ranks} ranks"
        self.console.print(
            f"[dim]{name}: {who}, steps {first} to {last - 1}[/dim]", highlight=False
        )
        where = self.place / name.replace(" ", "_")
        run = run_derived(derived(self.job, where, ranks, resume, last, every or last), first)
        if every is None:  # it was saved for nobody
            shutil.rmtree(run.checkpoint, ignore_errors=True)
        return run


def _goes_on(record: dict[str, Any], tree: dict[str, Any], last: int) -> bool:
    """Is it the record of the training that was saved, up to step `last` at least?"""
    losses = record["numerics"]["loss"]
    saved: list[float] = tree["history"]["loss"].tolist()
    return len(losses) >= last and losses[: len(saved)] == saved


def _read(path: Path) -> dict[str, Any]:
    """By the plain reader, in this process, which is in no group."""
    from paceline.checkpoint.reading import read_whole

    return read_whole(path)
