"""One start of a job's ranks on this node; and what a node does that isn't node 0."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.controller.adopt import run_adopted
from paceline.controller.agreement import introduction
from paceline.controller.directory import NODE_FROZEN, keep_log, set_aside
from paceline.controller.frozen import freeze
from paceline.controller.launch import Ended, processes, run_ranks
from paceline.controller.meet import Follower, Lead
from paceline.controller.nvml import Devices, NoDevices
from paceline.controller.plan import Job
from paceline.controller.rules import local_world_size
from paceline.controller.session import SESSION, Interrupted
from paceline.controller.use import Unseen, Use
from paceline.controller.watch import Watch
from paceline.record.environment import cores
from paceline.types import Failed


def node_directory(directory: Path, node_rank: int) -> Path:
    """Where a node keeps what is its own: on a shared file system, or on one of its own."""
    return directory / f"node{node_rank}" if node_rank else directory


def run_attempt(
    job: Job, frozen: Path, meeting: Lead | Follower, attempt: int, began: float, console: Console
) -> Ended:
    """Run the ranks of this node once, and show what they say."""
    (frozen.parent / "log").mkdir(exist_ok=True)
    if SESSION.store is not None:
        # the outer launcher shows their output itself
        with Watch(frozen.parent, (), console, Unseen()) as watch:
            ended = run_adopted(frozen, began, SESSION.store)
    else:
        nproc = local_world_size(job.config, job.requested["world_size"])
        ranks = range(meeting.group_rank * nproc, (meeting.group_rank + 1) * nproc)
        on_gpu = job.requested["device"] == "cuda"
        devices = Devices(nproc) if on_gpu else NoDevices()
        warmup_steps = job.config["measure"]["warmup_steps"]
        use = Use(processes, devices, cores(), warmup_steps, frozen.parent)
        with Watch(frozen.parent, ranks, console, use) as watch:
            ended = run_ranks(frozen, job.config["launch"], nproc, meeting, attempt, began)
        SESSION.signal, ended.nodes = ended.signal, meeting.nodes
    ended.use = watch.use.section()
    return ended


def say_restart(what: str, why: dict[str, Any], job: Job, console: Console) -> None:
    """Loudly, for without a checkpoint all work is lost."""
    lost = "checkpoint=off, so that training starts again at step 0; checkpoint=sync would resume"
    more = f"; {lost}" if job.choices.get("checkpoint") == "off" else ""
    first = str(why["message"]).splitlines()[0]
    text = f"WARNING {what}: {first}{more}"
    console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def follow(job: Job, meeting: Follower, console: Console) -> float | Failed:
    """The part of a node that isn't node 0, whose record is the job's; the job's rate, or why it
    has none. Raises Interrupted as the job on node 0 does."""
    end = meeting.agree(introduction(job, meeting.node_rank))
    if end is None:
        directory = node_directory(job.directory, meeting.node_rank)
        set_aside(directory)
        frozen = freeze(job, directory / NODE_FROZEN)
        for attempt in itertools.count():
            ended = run_attempt(job, frozen, meeting, attempt, time.perf_counter(), console)
            end = meeting.report(attempt, ended.report())
            if end is not None:
                break
            keep_log(directory, attempt + 1)
    assert end is not None
    return _outcome(end, meeting, console)


def _outcome(end: dict[str, Any], meeting: Follower, console: Console) -> float | Failed:
    state, kind = end["state"], end.get("kind")
    how = f"{state} ({kind})" if kind else state
    what = f": {str(end['message']).splitlines()[0]}" if end.get("message") else ""
    where = f"; the record is on node 0, {end['record']}" if "record" in end else ""
    text = f"node {meeting.node_rank} of {meeting.nnodes}: {how}{what}{where}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    SESSION.states.append(state)
    SESSION.gate_failed = SESSION.gate_failed or end.get("gate_failed", False)
    if state in ("interrupted", "preempted"):
        raise Interrupted(state)
    rate = end.get("rate")
    if state != "completed" or rate is None:
        return Failed(state, kind, end.get("message") or "; ".join(end.get("reasons", [])))
    return float(rate)
