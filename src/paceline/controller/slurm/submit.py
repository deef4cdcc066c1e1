"""Planned jobs -> scripts -> SLURM jobs, whose numbers are in `slurm/jobs.json` at once."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.controller.directory import FROZEN, finished
from paceline.controller.frozen import freeze
from paceline.controller.job import now
from paceline.controller.plan import Job
from paceline.controller.rules.nodes import node_counts
from paceline.controller.session import SESSION
from paceline.controller.slurm import call, script, state
from paceline.controller.slurm.book import JOBS, read_book
from paceline.controller.slurm.script import FOLDER, Ask
from paceline.record.schema import read_json, write_json
from paceline.record.source import snapshot
from paceline.types import ConfigError

INSIDE = (script.MARK, "RANK", "TORCHELASTIC_RUN_ID")
"""Variables of a process that somebody started as a part of a job."""


@dataclass(frozen=True)
class Script:
    """One SLURM job that is to be. `names`: of the jobs that it runs."""

    names: list[str]
    path: Path
    log: str
    text: str
    dependency: str | None


def ask_of(job: Job, directory: Path | None = None) -> Ask:
    """What a job needs of the cluster; `directory`: where its script runs, else its own."""
    slurm, nodes = job.config["launch"]["slurm"], node_counts(job.config)
    workers = job.requested["data"]["num_workers"]
    return Ask(
        name=job.name if directory is None else directory.name,
        command=job.command,
        directory=directory or job.directory,
        nodes=nodes,
        ranks=job.requested["world_size"] // nodes[1],
        workers=workers if isinstance(workers, int) else 1,
        slurm=slurm,
        python=slurm["python"] or sys.executable,
    )


def one_each(jobs: Sequence[Job]) -> list[Script]:
    """A SLURM job for each, with resources of its own."""
    scripts = []
    for job in jobs:
        ask = ask_of(job)
        path = job.directory / FOLDER / "job.sh"
        log = str(path.with_name("%j.log"))
        dependency = ask.slurm["dependency"]
        scripts.append(Script([job.name], path, log, script.job_text(ask), dependency))
    return scripts


def one_for_all(jobs: Sequence[Job], sweep_dir: Path) -> list[Script]:
    """One SLURM job that runs them in turn, on nodes enough for the largest.

    Raises ConfigError when they ask for different things of a node.
    """
    asks = [ask_of(job, sweep_dir) for job in jobs]
    first = asks[0]
    for key, value in first.slurm.items():
        other = next((a.slurm[key] for a in asks if a.slurm[key] != value), value)
        if other != value:
            raise ConfigError(
                [
                    f"hydra.launcher.mode=allocation: launch.slurm.{key} is {value} in one cell, "
                    f"{other} in another, and all run on the same nodes; give one value, or use "
                    "hydra.launcher.mode=jobs"
                ]
            )
    widest = max(asks, key=lambda a: a.cpus_per_task or 0)
    whole = Ask(
        name=sweep_dir.name,
        command=first.command,
        directory=sweep_dir,
        nodes=(max(a.nodes[0] for a in asks), max(a.nodes[1] for a in asks)),
        ranks=widest.ranks,
        workers=widest.workers,
        slurm=first.slurm,
        python=first.python,
    )
    path = sweep_dir / FOLDER / "sweep.sh"
    text, dependency = script.allocation_text(whole), first.slurm["dependency"]
    names = [job.name for job in jobs]
    return [Script(names, path, str(path.with_name("%j.log")), text, dependency)]


def in_queue(directory: Path) -> dict[str, str]:
    """Name -> number of the jobs of this directory that SLURM hasn't ended yet."""
    book = read_book(directory)
    waiting = [] if book is None else [e for e in book.entries if finished(e.cell) is None]
    states = state.look(entry.id for entry in waiting)
    return {entry.name: entry.id for entry in waiting if not states[entry.id].over}


def check_outside() -> None:
    """Raises ConfigError in a process of a job: a sweep that submits itself never ends."""
    name = next((n for n in INSIDE if n in os.environ), None)
    if name is not None:
        raise ConfigError(
            [
                f"launch.scheduler=slurm: this process is a part of a job already ({name} is set), "
                "and a job submits none; run it from a shell of its own"
            ]
        )


def submit(
    directory: Path, mode: str, jobs: Sequence[Job], scripts: list[Script], in_flight: int | None
) -> list[str]:
    """Submit all scripts, and what collects them; their numbers. `in_flight`: so many may run at a
    time; each of the others waits for the end of one before it, with nobody's help.

    Raises ConfigError with SLURM's reason, and then nothing of it is left in the queue.
    """
    code = snapshot(Path.cwd())
    for job in jobs:
        (job.directory / FOLDER).mkdir(parents=True, exist_ok=True)
        freeze(replace(job, source=code), job.directory / FROZEN)
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for one in scripts:
        one.path.write_text(one.text)
    known = read_json(folder / JOBS) or {"jobs": []}
    book: dict[str, Any] = {
        "mode": mode,
        "command": SESSION.command,
        "submitted_at": now(),
        "collector": None,
        "jobs": known["jobs"],
    }
    numbers: list[str] = []
    try:
        for one in scripts:
            waits = [one.dependency] if one.dependency else []
            if in_flight is not None and len(numbers) >= in_flight:
                waits.append(f"afterany:{numbers[len(numbers) - in_flight]}")
            number = call.sbatch(one.path, ",".join(waits) or None, test_only=False)
            numbers.append(number)
            for name in one.names:
                entry = {
                    "name": name,
                    "id": number,
                    "script": str(one.path),
                    "log": one.log.replace("%j", number),
                }
                book["jobs"] = [e for e in book["jobs"] if e["name"] != name] + [entry]
            write_json(folder / JOBS, book)
        if SESSION.sweep_dir is not None:
            book["collector"] = _collector(directory, jobs[0], numbers)
            write_json(folder / JOBS, book)
    except BaseException:
        call.scancel(numbers)
        raise
    return numbers


def try_out(scripts: list[Script]) -> None:
    """Have SLURM look at each kind of job before anything is written or in the queue. Raises
    ConfigError with its reason."""
    kinds: dict[str, Script] = {}
    for one in scripts:
        own = ("#SBATCH --job-name=", "#SBATCH --output=")
        lines = [x for x in one.text.splitlines() if x.startswith("#SBATCH")]
        kinds.setdefault("\n".join(x for x in lines if not x.startswith(own)), one)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        for one in kinds.values():
            path = Path(folder) / "job.sh"
            path.write_text(one.text)
            call.sbatch(path, None, test_only=True)


def _collector(directory: Path, job: Job, numbers: Sequence[str]) -> str:
    path = directory / FOLDER / "collect.sh"
    path.write_text(script.collector_text(ask_of(job, directory)))
    return call.sbatch(path, f"afterany:{':'.join(numbers)}", test_only=False)
