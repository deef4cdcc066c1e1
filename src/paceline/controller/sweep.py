"""A sweep: check all cells, run the missing ones in fresh processes, leave one table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig
from rich.console import Console

from paceline.compare import pairs
from paceline.compare import table as tables
from paceline.controller import predicted
from paceline.controller.directory import claim, finished
from paceline.controller.identity import unhashed
from paceline.controller.job import now, outcome
from paceline.controller.nudged import nudged
from paceline.controller.plan import CannotRun, Job, make_job
from paceline.controller.session import SESSION
from paceline.controller.show import print_plan, print_start
from paceline.controller.turns import Turns, say_nudged
from paceline.record.schema import empty_record, read_json, write_json
from paceline.report import terminal
from paceline.types import ConfigError, Failed


@dataclass
class Cells:
    """The planned cells of a sweep, in order. `skipped`: with the reason."""

    jobs: list[Job] = field(default_factory=list)
    skipped: list[tuple[Job, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, root: DictConfig, directory: Path, sweep: str) -> Job | Failed:
        """Plan one composed cell; what is wrong with it is kept, not raised."""
        try:
            job = make_job(root, directory, sweep, SESSION.command)
        except CannotRun as error:
            reason = "; ".join(error.problems)
            self.skipped.append((error.job, reason))
            return Failed("skipped", None, reason)
        except ConfigError as error:
            self.problems += error.problems
            return Failed("invalid", None, "; ".join(error.problems))
        self.jobs.append(job)
        return job


def check_swept(overrides: Sequence[Sequence[str]]) -> list[str]:
    """A key outside the identity can't be swept: its cells would share one directory."""
    values: dict[str, set[str]] = {}
    for cell in overrides:
        for override in cell:
            key, _, value = override.lstrip("+~").partition("=")
            values.setdefault(key, set()).add(value)
    return [
        f"{key}: can't be swept, it is no part of a cell's identity; set it once"
        for key, seen in values.items()
        if len(seen) > 1 and unhashed(key)
    ]


class Way(Protocol):
    """How the cells of a sweep are run."""

    def problems(self, jobs: list[Job], sweep_dir: Path, dry: bool) -> list[str]:
        """Why these can't be run this way. `dry`: without asking anybody outside."""

    def waiting(self, sweep_dir: Path) -> set[str]:
        """Names of jobs that an earlier start has under way, and this one must not start again."""

    def show(self, jobs: list[Job], sweep_dir: Path, console: Console) -> None:
        """What would be done, under plan=true; nothing is."""

    def run(self, turns: Turns, sweep_dir: Path, console: Console) -> dict[str, Any]:
        """Run them; job's name -> sustained rate or Failed, of those that came to an end."""


def run_cells(cells: Cells, sweep_dir: Path, plan_only: bool, way: Way) -> dict[str, Any]:
    """Run what is missing; job directory's name -> sustained rate or Failed.

    Raises ConfigError before anything starts if any cell is wrong, Interrupted on a signal.
    """
    console = terminal.screen()
    dry = plan_only or bool(cells.problems)
    cells.problems += way.problems(cells.jobs, sweep_dir, dry)
    if cells.problems:
        raise ConfigError(cells.problems)
    if plan_only:
        SESSION.sweep_dir = None  # nothing ran: no table
        print_plan(cells.jobs, cells.skipped, console)
        first = cells.jobs[0].config_hash if cells.jobs else None
        say_nudged(nudged(cells.jobs, first), console)
        way.show(cells.jobs, sweep_dir, console)
        raise SystemExit(0)
    if SESSION.held_sweep != sweep_dir:  # a sweeper may come back with more cells
        SESSION.held.enter_context(claim(sweep_dir))
        SESSION.held_sweep = sweep_dir
    SESSION.strict = any(job.config["strict"] for job in cells.jobs)
    jobs = list({job.directory: job for job in cells.jobs}.values())
    under_way = way.waiting(sweep_dir)
    missing = [job for job in jobs if finished(job.directory) is None]
    missing = [job for job in missing if job.name not in under_way]
    rerun = _note(cells, sweep_dir, bool(missing))
    print_start(jobs, missing, len(cells.skipped), sweep_dir, console)
    for job, reason in cells.skipped:
        if finished(job.directory) is None:
            _record_skipped(job, reason)
    sweep = read_json(sweep_dir / "sweep.json") or {}
    beside = [
        job
        for job in nudged(jobs, sweep["baseline"])
        if finished(job.directory) is None and job.name not in under_way
    ]
    todo = _with_baselines(jobs, missing, sweep_dir, rerun)
    done = way.run(Turns(jobs, todo, beside), sweep_dir, console)
    for job in jobs:
        if job.name not in done:
            record = finished(job.directory)
            not_run = Failed("pending", None, "not run")
            done[job.name] = not_run if record is None else outcome(record, job)
    return done


def make_table(sweep_dir: Path, console: Console) -> dict[str, Any] | None:
    """The table of a sweep's directory, from its files alone; written and shown."""
    sweep = read_json(sweep_dir / "sweep.json")
    records = pairs.load([sweep_dir]) if pairs.is_sweep(sweep_dir) else []
    records += pairs.not_run(sweep, records) if sweep else []
    if not records:
        return None
    made = tables.make(records, sweep=sweep)
    tables.write(made, sweep_dir)
    if SESSION.strict and any(row["validity"] == "diverged" for row in made["rows"]):
        SESSION.gate_failed = True  # only the comparison with the baseline can see that one
    terminal.table(made, console)
    predicted.check(records, sweep, sweep_dir, console)
    if sweep is not None and any(r["status"]["state"] == "pending" for r in records):
        console.print(
            f"to go on: {sweep['continue']}", markup=False, highlight=False, soft_wrap=True
        )
    return made


def _note(cells: Cells, sweep_dir: Path, any_missing: bool) -> int:
    """Write sweep.json; returns which start of this directory this is (0 the first)."""
    path = sweep_dir / "sweep.json"
    known = read_json(path)
    everything = [*cells.jobs, *(job for job, _ in cells.skipped)]
    listed = [
        {
            "name": job.name,
            "cell": job.cell,
            "config_hash": job.config_hash,
            "work_hash": job.work_hash,
            "repeat": job.repeat,
            "overrides": job.overrides,
        }
        for job in sorted(everything, key=lambda j: j.repeat)
    ]
    first = cells.jobs[0].config_hash if cells.jobs else None
    kept = cells.jobs[0].config["diagnose"].get("predictions") if cells.jobs else None
    rerun = 0
    if known is not None:
        names = {c["name"] for c in listed}
        listed = [c for c in known["cells"] if c["name"] not in names] + listed
        same_process = known["started_by"] == SESSION.token
        rerun = known["rerun"] + (1 if any_missing and not same_process else 0)
    write_json(
        path,
        {
            "started_at": known["started_at"] if known else now(),
            "started_by": SESSION.token,
            "rerun": rerun,
            "command": SESSION.command,
            "continue": _continue_command(sweep_dir),
            "predictions": None if kept is None else str(Path(kept).absolute()),
            "baseline": known["baseline"] if known else first,
            "cells": listed,
        },
    )
    return rerun


def _continue_command(sweep_dir: Path) -> str:
    words = [w for w in sys.argv[1:] if not w.startswith("hydra.sweep.dir=")]
    return shlex.join(["paceline", *words, f"hydra.sweep.dir={sweep_dir}"])


def _with_baselines(jobs: list[Job], missing: list[Job], sweep_dir: Path, rerun: int) -> list[Job]:
    """The missing cells of a later start, with the baseline measured again beside them: what the
    machine gave then can't be compared with what it gives now."""
    if rerun == 0:
        return missing
    sweep = read_json(sweep_dir / "sweep.json") or {}
    todo, beside = [], set()
    for job in missing:
        base = next(
            (j for j in jobs if j.repeat == job.repeat and j.config_hash == sweep["baseline"]), None
        )
        if base is not None and base not in missing and job.repeat not in beside:
            beside.add(job.repeat)
            again = sweep_dir / f"{base.name}.{rerun}"
            todo.append(replace(base, directory=again, rerun=rerun))
        todo.append(replace(job, rerun=rerun))
    return todo


def _record_skipped(job: Job, reason: str) -> None:
    record = empty_record()
    record["job"] |= job.section()
    record["status"] |= {"state": "skipped", "message": reason}
    record["requested"] = job.requested
    job.directory.mkdir(parents=True, exist_ok=True)
    write_json(job.directory / "result.json", record)
    write_json(job.directory / "status.json", {"job": record["job"], "status": record["status"]})
