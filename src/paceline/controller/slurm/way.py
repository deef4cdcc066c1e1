"""A sweep, or a single job, on a cluster: submitted, and watched or left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.controller.directory import claim, finished, set_aside
from paceline.controller.job import outcome, show
from paceline.controller.plan import Job
from paceline.controller.session import SESSION
from paceline.controller.slurm import script
from paceline.controller.slurm.submit import (
    Script,
    check_outside,
    in_queue,
    one_each,
    one_for_all,
    submit,
    try_out,
)
from paceline.controller.slurm.watch import wait
from paceline.controller.turns import Turns
from paceline.record.schema import read_json
from paceline.types import ConfigError, Failed

MODES = ("jobs", "allocation")


@dataclass(frozen=True)
class Cluster:
    """A `sweep.Way`. `before`: called with each cell before it is submitted."""

    mode: str
    max_in_flight: int | None
    detach: bool
    before: Callable[[Job], None]

    def __post_init__(self) -> None:
        most = self.max_in_flight
        problems = []
        if self.mode not in MODES:
            problems.append(f"hydra.launcher.mode={self.mode}: give one of {', '.join(MODES)}")
        if most is not None and (type(most) is not int or most < 1):
            problems.append(f"hydra.launcher.max_in_flight={most}: give 1 or more, or null")
        if self.mode == "allocation" and most is not None:
            problems.append(
                f"hydra.launcher.max_in_flight={most}: an allocation runs its cells in turn; "
                "leave it out"
            )
        if problems:
            raise ConfigError(problems)
        check_outside()

    def problems(self, jobs: list[Job], sweep_dir: Path, dry: bool) -> list[str]:
        if self.mode == "jobs" and any(j.config["sweep"]["on_failure"] == "stop" for j in jobs):
            return [
                "sweep.on_failure=stop: jobs of a cluster run side by side, none waits for the end "
                "of another; leave it at continue, or use hydra.launcher.mode=allocation"
            ]
        try:
            scripts = self._scripts(_missing(jobs), sweep_dir)
            if not dry:
                try_out(scripts)
        except ConfigError as error:
            return error.problems
        return []

    def waiting(self, sweep_dir: Path) -> set[str]:
        return set(in_queue(sweep_dir))

    def show(self, jobs: list[Job], sweep_dir: Path, console: Console) -> None:
        for one in self._scripts(_missing(jobs), sweep_dir):
            _print_script(one, console)

    def run(self, turns: Turns, sweep_dir: Path, console: Console) -> dict[str, Any]:
        todo = [*turns.todo, *turns.beside]
        for job in todo:
            with claim(job.directory):
                set_aside(job.directory)
            self.before(job)
        if todo:
            scripts = self._scripts(todo, sweep_dir)
            numbers = submit(sweep_dir, self.mode, todo, scripts, self.max_in_flight)
            _say_submitted(numbers, len(todo), sweep_dir, console)
        if self.detach:
            SESSION.sweep_dir = None  # no table yet: the collector makes it
            raise SystemExit(0)
        if todo or self.waiting(sweep_dir):
            wait(sweep_dir, console)
        return {job.name: _rate(job) for job in turns.todo}

    def _scripts(self, jobs: list[Job], sweep_dir: Path) -> list[Script]:
        if not jobs:
            return []
        return one_for_all(jobs, sweep_dir) if self.mode == "allocation" else one_each(jobs)


def run_single(job: Job, detach: bool, console: Console) -> float | Failed:
    """`launch=slurm` without -m: submit the job, wait for it, show it. One that is in the queue
    already is waited for, one that is finished is shown.

    Raises ConfigError with SLURM's reason, SystemExit(0) under `detach`, Interrupted when the user
    left.
    """
    check_outside()
    if finished(job.directory) is None:
        if job.name not in in_queue(job.directory):
            scripts = one_each([job])
            try_out(scripts)
            with claim(job.directory):
                set_aside(job.directory)
            numbers = submit(job.directory, "jobs", [job], scripts, None)
            _say_submitted(numbers, 1, job.directory, console)
        if detach:
            raise SystemExit(0)
        wait(job.directory, console)
    record = read_json(job.directory / "result.json")
    if record is None:
        return Failed("pending", None, "not run")
    show(record, job, console)
    return outcome(record, job)


def print_script(job: Job, console: Console) -> None:
    """Of `launch=slurm plan=true`."""
    for one in one_each([job]):
        _print_script(one, console)


def _missing(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if finished(job.directory) is None]


def _rate(job: Job) -> float | Failed:
    record = read_json(job.directory / "result.json")
    return Failed("pending", None, "not run") if record is None else outcome(record, job)


def _print_script(one: Script, console: Console) -> None:
    dependency = f"  (--dependency={one.dependency})" if one.dependency else ""
    text = f"\n{one.path}{dependency}\n{one.text}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _say_submitted(numbers: list[str], jobs: int, directory: Path, console: Console) -> None:
    listed = " ".join(numbers[:8]) + (f" ... {numbers[-1]}" if len(numbers) > 8 else "")
    text = (
        f"submitted {jobs} job{'s' * (jobs > 1)} to SLURM: {listed}; scripts and logs in "
        f"*/{script.FOLDER}/; paceline status {directory} --wait   shows them from anywhere"
    )
    console.print(text, markup=False, highlight=False, soft_wrap=True)
