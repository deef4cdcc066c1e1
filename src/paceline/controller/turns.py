"""The cells of a sweep one after the other: on this machine, or inside of an allocation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from paceline.controller.job import run_job
from paceline.controller.plan import Job
from paceline.types import Failed


@dataclass(frozen=True)
class Turns:
    """`jobs`: all of a sweep. `todo`: those that are missing, in order, with a baseline measured
    again beside them. `beside`: nudged baselines, after the cells, for no rate depends on them."""

    jobs: list[Job]
    todo: list[Job]
    beside: list[Job]


def in_turn(
    turns: Turns,
    on_failure: str,
    console: Console,
    before: Callable[[Job], None] = lambda job: None,
    run: Callable[[Job, Console], float | Failed] = run_job,
) -> dict[str, float | Failed]:
    """`run` each of them, `before` it; job's name -> its rate, or why it has none."""
    done: dict[str, float | Failed] = {}
    for number, job in enumerate(turns.todo, 1):
        line = f"[{number}/{len(turns.todo)}] {what_differs(job, turns.jobs)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        before(job)
        start = time.monotonic()
        rate = done[job.name] = run(job, console)
        if not isinstance(rate, Failed):  # a failure has been shown
            took = time.monotonic() - start
            console.print(f"      {rate:,.0f}/s  ({took:.1f} s)", markup=False, highlight=False)
        elif on_failure == "stop":
            console.print("stopped: sweep.on_failure=stop", highlight=False)
            return done
    say_nudged(turns.beside, console)
    for job in turns.beside:
        run(job, console)
    return done


def what_differs(job: Job, jobs: list[Job]) -> str:
    """The overrides that not all cells share."""
    shared = set.intersection(*(set(j.overrides) for j in jobs))
    return " ".join(o for o in job.overrides if o not in shared) or job.name


def say_nudged(jobs: list[Job], console: Console) -> None:
    """How many runs of the baseline there are beside the cells."""
    if jobs:
        dtypes = ", ".join(dict.fromkeys(job.nudge["dtype"] for job in jobs if job.nudge))
        console.print(
            f"nudged baselines: {len(jobs)} runs, initial parameters off by one unit in the last "
            f"place of {dtypes}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
