"""What a plan looks like: the jobs, what they differ in, what is skipped; nothing is started."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.controller.directory import finished
from paceline.controller.plan import Job


def print_plan(jobs: list[Job], skipped: list[tuple[Job, str]], console: Console | None = None) -> None:
    """One line a job, then the totals."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "overrides", "ranks x threads", "batch", "state"):
        table.add_column(column, overflow="fold")
    for job in jobs:
        done = finished(job.directory) is not None
        table.add_row(*_cells(job), "done" if done else "to run")
    for job, reason in skipped:
        table.add_row(*_cells(job), f"skipped: {escape(reason)}")
    console.print(table)
    to_run = [j for j in jobs if finished(j.directory) is None]
    most = max((j.requested["world_size"] for j in to_run), default=0)
    console.print(
        f"{len(jobs) + len(skipped)} jobs: {len(to_run)} to run, {len(jobs) - len(to_run)} done, "
        f"{len(skipped)} skipped; at most {most} ranks at a time. plan=true: nothing was started.",
        highlight=False,
    )


def print_start(jobs: list[Job], missing: list[Job], skipped: int, where: Path, console: Console) -> None:
    """The first line of a sweep."""
    console.print(
        f"sweep {where}: {len(jobs) + skipped} cells, {len(missing)} to run, "
        f"{len(jobs) - len(missing)} done, {skipped} skipped",
        highlight=False,
        soft_wrap=True,
    )


def _cells(job: Job) -> list[str]:
    requested = job.requested
    batch = job.config["data"].get("global_batch_size")
    parts = requested["world_size"] * job.config["run"]["accumulation_steps"]
    micro = f" = {parts} x {batch // parts}" if batch and batch % parts == 0 else ""
    return [
        job.directory.name,
        escape(" ".join(job.overrides)) or "(defaults)",
        f"{requested['world_size']} x {requested['threads_per_rank']}",
        f"{batch}{micro}",
    ]
