"""The runs of a drill: a frozen job, started from one of its checkpoints in clean ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.controller.directory import FROZEN
from paceline.controller.frozen import freeze
from paceline.controller.job import complete, now
from paceline.controller.launch import run_ranks
from paceline.controller.meet import Lead
from paceline.controller.nudged import QUIET
from paceline.controller.plan import Job
from paceline.controller.rules import broken_rules
from paceline.controller.session import Interrupted
from paceline.record.environment import cores
from paceline.record.schema import read_json

DDP = {
    "_target_": "paceline.strategy.ddp.Ddp",
    "bucket_cap_mb": 25,
    "static_graph": False,
    "gradient_as_bucket_view": True,
    "find_unused_parameters": False,
    "compile": "inside",
}
"""As conf/strategy/ddp.yaml: for a job of one process that is restored in several."""

SINGLE = {"_target_": "paceline.strategy.single.Single"}
MOST_RANKS = 8
"""Looked at for another number of ranks than the one rank of a job."""

UNJUDGED = ("measure", "scheduler", "profiler", "diagnose", "comm_hook")
"""Their rules are of whole trainings, or held when the job was planned."""

DIGESTS = "digests.json"


@dataclass(frozen=True)
class Ran:
    """One run of a drill. `digests`: path -> digest of what its ranks restored; None: it didn't get
    so far."""

    job: Job
    steps: tuple[int, int]
    record: dict[str, Any]
    digests: dict[str, str] | None

    @property
    def ranks(self) -> int:
        return int(self.job.requested["world_size"])

    @property
    def checkpoint(self) -> Path:
        return self.job.directory / "checkpoint"


def derived(job: Job, directory: Path, ranks: int, resume: Path, steps: int, every: int) -> Job:
    """The job as a drill runs it: from `resume` up to step `steps`, saved at `every`, on this node,
    nothing measured, evaluated or explained."""
    strategy, option = _strategy(job, ranks)
    launch = {"nproc": ranks, "nnodes": 1, "rdzv_endpoint": None, "node_rank": None}
    keep = {"keep_last": 2, "keep_every": None, "strict": False, "on_failure": "stop"}
    measure = {"warmup_steps": 1, "window_s": 0.0, "gradient_check": False}
    config = job.config | {
        "strategy": strategy,
        "checkpoint": job.config["checkpoint"]
        | keep
        | {"resume": str(resume), "every_steps": every},
        "profiler": QUIET["profiler"],
        "diagnose": QUIET["diagnose"],
        "launch": job.config["launch"] | launch | {"max_restarts": 0},
        "measure": job.config["measure"] | measure,
        "run": job.config["run"] | {"steps": steps, "eval_batches": 0},
        # what it makes of batch and learning rate is frozen already
        "scaling": {"mode": "strong", "learning_rate": "none", "base_batch_size": None},
    }
    if "compare_eager" in job.config["compile"]:
        config["compile"] = job.config["compile"] | {"compare_eager": False}
    same = ranks == job.requested["world_size"]
    threads = job.requested["threads_per_rank"] if same else max(1, cores() // ranks)
    asked = {"world_size": ranks, "nnodes": 1, "threads_per_rank": threads, "strategy": option}
    return replace(
        job,
        config=config,
        choices=job.choices | {"strategy": option},
        directory=directory,
        requested=job.requested | asked,
        command="",
        digests=True,
    )


def cannot(job: Job, ranks: int) -> list[str]:
    """Why the job can't run in so many ranks on this node; empty if it can."""
    asked = derived(job, job.directory, ranks, job.directory, 1, 1)
    return broken_rules(asked.config, asked.choices, ranks, UNJUDGED)


def another_world(job: Job, ranks: int) -> tuple[int | None, list[str]]:
    """Another number of ranks than that which saved, or why there is none: one rank, else the
    fewest that share the batch equally."""
    others = [1] if ranks > 1 else range(2, MOST_RANKS + 1)
    found = {other: cannot(job, other) for other in others}
    fitting = next((other for other, problems in found.items() if not problems), None)
    return fitting, [] if fitting else found[others[0]]


def run_derived(job: Job, first: int) -> Ran:
    """Run it to its end, in an empty directory. Raises Interrupted when it was told to stop."""
    job.directory.mkdir(parents=True)
    (job.directory / "log").mkdir()
    frozen = freeze(job, job.directory / FROZEN)
    section = job.section() | {"started_at": now()}
    meeting, began = Lead(job, 1), time.perf_counter()
    ended = run_ranks(frozen, job.config["launch"], job.requested["world_size"], meeting, 0, began)
    meeting.part()
    if ended.signal:
        raise Interrupted("interrupted")
    record = complete(job, section, ended, began, time.perf_counter())
    digests = read_json(job.directory / DIGESTS)
    return Ran(job, (first, job.config["run"]["steps"]), record, digests)


def _strategy(job: Job, ranks: int) -> tuple[dict[str, Any], str]:
    """Node and option: the job's own, where it can be had with so many ranks."""
    option = job.requested["strategy"]
    if ranks > 1 and option == "single":
        return DDP, "ddp"
    if ranks == 1 and option == "hsdp":
        return SINGLE, "single"
    return job.config["strategy"], option
