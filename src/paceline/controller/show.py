"""What a plan looks like: the jobs, what they differ in, what is skipped; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.controller.directory import finished
from paceline.controller.forecast import forecast
from paceline.controller.plan import Job
from paceline.record.environment import cores
from paceline.record.memory import gib, is_sharded
from paceline.report.size import estimate_text
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
    for column in ("job", "overrides", "ranks", "threads a rank", "batch", "memory", "state"):
        table.add_column(column, overflow="fold")
    memory = dict(zip([job.name for job in to_run], forecast(to_run), strict=True))
    for job, words in zip(everything, own, strict=True):
        state = "done" if job in done else "to run" if job in to_run else "skipped"
        need = _need(job, memory.get(job.name))
        cells = (job.name, " ".join(words) or "(defaults)", *_sizes(job), need, state)
        table.add_row(*map(Text, cells))
    console.print(table)
    for name, found in memory.items():
        if len(everything) == 1:
            _line(console, f"memory of a rank: {estimate_text(found)}")
        elif not found["fits"]:
            _line(console, f"memory {name}: {found['advice'] or estimate_text(found)}")
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
    ranks, micro_batches = requested["world_size"], job.config["run"]["accumulation_steps"]
    batch = requested["scaling"]["global_batch_size"]
    own = requested["scaling"]["per_rank_batch_size"]
    text = "-" if batch is None else f"{batch} = {ranks} x {own}"
    if batch and batch % (ranks * micro_batches) == 0 and micro_batches > 1:
        text += f", each {micro_batches} x {own // micro_batches}"
    return str(ranks), str(requested["threads_per_rank"]), text


def _need(job: Job, found: dict[str, Any] | None) -> str:
    """`0.079 of 22 GiB`: of a rank, under the strategy of the job."""
    if found is None or found["advice"] is None:
        return "-"
    need = found["fsdp_gib" if is_sharded(job.config["strategy"]) else "ddp_gib"]
    return f"{gib(need)} of {gib(found['available_gib'])} GiB"


def _processes(job: Job) -> int:
    ranks, workers = job.requested["world_size"], job.requested["data"]["num_workers"] or 0
    if workers == "auto":  # the most that they can be: ranks and workers share the cores
        return int(max(2 * ranks, cores()))
    return int(ranks * (1 + workers))


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
