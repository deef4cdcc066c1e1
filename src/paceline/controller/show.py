"""What a plan looks like: the jobs, what they differ in, what is skipped; nothing is started."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.controller.directory import finished
from paceline.controller.plan import Job, cores
from paceline.report.terminal import screen


def print_plan(
    jobs: list[Job], skipped: list[tuple[Job, str]], console: Console | None = None
) -> None:
    """A line a job, the skipped ones with their reasons, then the totals."""
    console = console or screen()
    jobs = list({job.directory: job for job in jobs}.values())
    everything = [*jobs, *(job for job, _ in skipped)]
    done = [job for job in jobs if finished(job.directory) is not None]
    to_run = [job for job in jobs if job not in done]
    shared, own = overrides_apart(everything)
    if len(everything) > 1 and shared:
        _line(console, f"all: {' '.join(shared)}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in ("job", "overrides", "ranks", "threads a rank", "batch", "state"):
        table.add_column(column, overflow="fold")
    for job, words in zip(everything, own, strict=True):
        state = "done" if job in done else "to run" if job in to_run else "skipped"
        table.add_row(*map(Text, (job.name, " ".join(words) or "(defaults)", *_sizes(job), state)))
    console.print(table)
    for job, reason in skipped:
        _line(console, f"skipped {job.name}: {reason}")
    ranks = max((job.requested["world_size"] for job in to_run), default=0)
    processes = max(map(_processes, to_run), default=0)
    _line(
        console,
        f"{len(everything)} jobs: {len(to_run)} to run, {len(done)} done, {len(skipped)} skipped; "
        f"one at a time, at most {ranks} ranks, {processes} processes with their loader workers. "
        "plan=true: nothing was started.",
    )


def print_start(
    jobs: list[Job], missing: list[Job], skipped: int, where: Path, console: Console
) -> None:
    """The first line of a sweep."""
    _line(
        console,
        f"sweep {where}: {len(jobs) + skipped} cells, {len(missing)} to run, "
        f"{len(jobs) - len(missing)} done, {skipped} skipped",
    )


def overrides_apart(jobs: list[Job]) -> tuple[list[str], list[list[str]]]:
    """The overrides that all jobs share, and those of each job that differ. `plan` is no part."""
    each = [[o for o in job.overrides if not o.startswith("plan=")] for job in jobs]
    if len(each) < 2:
        return [], each
    shared = [o for o in each[0] if all(o in others for others in each)]
    return shared, [[o for o in words if o not in shared] for words in each]


def _sizes(job: Job) -> tuple[str, str, str]:
    requested = job.requested
    batch = job.config["data"].get("global_batch_size")
    parts = requested["world_size"] * job.config["run"]["accumulation_steps"]
    shares = f" = {parts} x {batch // parts}" if batch and batch % parts == 0 else ""
    return str(requested["world_size"]), str(requested["threads_per_rank"]), f"{batch}{shares}"


def _processes(job: Job) -> int:
    ranks, workers = job.requested["world_size"], job.requested["data"]["num_workers"] or 0
    if workers == "auto":  # the most that they can be: ranks and workers share the cores
        return int(max(2 * ranks, cores()))
    return int(ranks * (1 + workers))


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
