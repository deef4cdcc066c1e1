"""Run one planned job: claim its directory, start the ranks, complete and show its record."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline import config as checker
from paceline.controller import checkpoints, predicted
from paceline.controller.agreement import introduction
from paceline.controller.attempt import follow, node_directory, run_attempt, say_restart
from paceline.controller.directory import (
    FROZEN,
    claim,
    earlier_attempts,
    finished,
    keep_log,
    set_aside,
)
from paceline.controller.frozen import freeze
from paceline.controller.launch import Ended
from paceline.controller.meet import Follower, Lead, open_meeting
from paceline.controller.plan import Job
from paceline.controller.rules import local_world_size, node_counts
from paceline.controller.session import SESSION, Interrupted
from paceline.record import source
from paceline.record.failure import cause
from paceline.record.recovery import goodput
from paceline.record.schema import RAN, empty_record, read_json, write_json
from paceline.report import tensorboard, terminal
from paceline.types import Failed


def run_job(job: Job, console: Console) -> float | Failed:
    """The job's sustained rate, or why it has none. A job that is finished is shown, not run.

    Raises Interrupted when it was told to stop, ConfigError when its directory is in use or holds
    another training, its checkpoints can't be written or gone on from, or the nodes of the job
    don't come together.
    """
    with (
        open_meeting(job, adopted=SESSION.store is not None) as meeting,
        claim(node_directory(job.directory, meeting.node_rank)),
    ):
        if isinstance(meeting, Follower):
            return follow(job, meeting, console)
        record = finished(job.directory)
        if record is not None and checkpoints.another(job, record):
            said = "the same training finished here with other settings: its record is set aside"
            console.print(f"[dim]{said}[/dim]", highlight=False, soft_wrap=True)
            record = None
        if record is None and job.sweep is None:  # in a sweep its ranks say it: a row, not the end
            checkpoints.check(job)
        known = None if record is None else told(record, job)
        meeting.agree(introduction(job, meeting.node_rank), known)
        if record is None and len(meeting.nodes) < meeting.expected:
            came = f"nodes: {len(meeting.nodes)} of {meeting.expected} came"
            console.print(f"{came}; going on with {len(meeting.nodes)}", highlight=False)
        if record is None:
            record = _measure(job, meeting, console)
        else:
            console.print(f"[dim]finished before: {job.name}[/dim]", highlight=False)
    show(record, job, console)
    rate = outcome(record, job)
    if SESSION.signal and SESSION.sweep_dir is not None:  # it ended first; the next one won't run
        SESSION.states.append("interrupted")
        raise Interrupted("interrupted")
    return rate


def _measure(job: Job, meeting: Lead, console: Console) -> dict[str, Any]:
    set_aside(job.directory)
    frozen = freeze(job, job.directory / FROZEN)
    section = job.section() | {"started_at": now()}
    code = None if job.source is None else source.section(job.source, Path.cwd())
    for sentence in [] if code is None else code["changed"]:
        console.print(f"WARNING {sentence}", style="yellow", highlight=False, soft_wrap=True)
    status = job.directory / "status.json"
    write_json(status, {"job": section, "status": {"state": "running", "phase": "startup"}})
    start = began = time.perf_counter()
    restarts: list[dict[str, Any]] = []
    counted = 0
    while True:
        attempt = len(restarts)
        ended = run_attempt(job, frozen, meeting, attempt, began, console)
        ended.add(*meeting.reports(attempt))
        if not _again(job, ended, counted):
            break
        counted += not ended.lost
        meeting.let_go(ended.lost, attempt)
        meeting.decide(attempt, None)
        found = status_of(job, ended, log=f"log/restart{attempt + 1}")
        why = {key: found[key] for key in ("rank", "kind", "message", "step")}
        what = f"restart {counted} of {job.config['launch']['max_restarts']} after {why['kind']}"
        if ended.lost:
            what = f"{_numbered(ended.lost)} lost, going on with {_numbered(meeting.nodes)}"
            why["message"] += f"\n{what}"
        restarts.append(why)
        say_restart(what, why, job, console)
        keep_log(job.directory, len(restarts))
        began = time.perf_counter()
    record = complete(job, section, ended, start, time.perf_counter(), restarts, began)
    record["environment"]["source"] = code
    write_json(job.directory / "result.json", record)
    predicted.keep(job, record)
    write_json(status, {"job": record["job"], "status": record["status"]})
    meeting.decide(attempt, told(record, job))
    if record["status"]["state"] in RAN:
        tensorboard.write(job.directory, record)
    return record


def _again(job: Job, ended: Ended, counted: int) -> bool:
    """Start the ranks once more? Not after a signal. As often as launch.max_restarts says, so far
    `counted` times; and whenever nodes are lost, which can't come back, and enough are left."""
    if status_of(job, ended)["state"] != "failed" or ended.signal:
        return False
    if ended.lost:
        return len(ended.nodes) - len(ended.lost) >= node_counts(job.config)[0]
    return counted < int(job.config["launch"]["max_restarts"])


def _numbered(nodes: Iterable[int]) -> str:
    listed = list(map(str, sorted(nodes)))
    return f"node{'s' * (len(listed) > 1)} {', '.join(listed)}"


def complete(
    job: Job,
    section: dict[str, Any],
    ended: Ended,
    start: float,
    end: float,
    restarts: Sequence[dict[str, Any]] = (),
    began: float | None = None,
) -> dict[str, Any]:
    """The ranks' part of the record with what only the controller knows; or a failure's record.
    `began`: the last attempt; `start`, `end`: of the whole job, on the same clock."""
    record = read_json(job.directory / "result.json") or empty_record()
    record["job"] |= section
    record["requested"] = job.requested
    record["utilisation"] |= ended.use
    local = local_world_size(job.config, job.requested["world_size"])
    if record["effective"]:
        record["effective"]["nnodes"] = record["effective"]["world_size"] // local
    if len(ended.nodes or range(job.requested["nnodes"])) > 1:
        record["utilisation"]["reasons"]["nodes"] = "node 0 alone: a controller sees its own ranks"
    record["status"] |= status_of(job, ended) | {"restarts": list(restarts)}
    wrong = record["validity"]["verdict"] in ("not_training", "diverged")
    if wrong and record["status"]["exit_code"] == 0:
        record["status"]["state"] = "invalid"
    if restarts and began is not None:
        record["ledger"]["phases_s"]["restart"] = began - start
    _close_ledger(record, end - start, end)
    if record["status"]["state"] in RAN:
        units = record["throughput"]["units_used"]
        record["throughput"]["end_to_end_units_per_s"] = units / record["ledger"]["wall_s"]
        _add_earlier_attempts(record, job)
        diagnose = checker.build(job.config["diagnose"])
        record["diagnosis"] |= diagnose.explain(record, job.config, job.choices)
    return record


def _add_earlier_attempts(record: dict[str, Any], job: Job) -> None:
    """Was it as fast before it was stopped, and how much of all the time went into training?"""
    section, rate = record["checkpoint"], record["throughput"]
    before = earlier_attempts(job.directory)
    rates = [r["throughput"]["steady_units_per_s"] for r, _ in before if r is not None]
    section["steady_before"] = [known for known in rates if known is not None]
    if section["economics"] is None:
        return
    came_from = [*(r for r, _ in before), record][0]
    brought = 0
    if came_from is not None and came_from["checkpoint"]["restored"] is not None:
        brought = came_from["checkpoint"]["resumed_from"]
    walls = [*(wall_s for _, wall_s in before), record["ledger"]["wall_s"]]
    steady = rate["steady_units_per_s"]
    step_s = rate["units_per_step"] / steady if steady else None
    trained = len(record["numerics"]["loss"]) - brought
    section["economics"]["goodput"] = goodput(trained, step_s, walls)


def status_of(job: Job, ended: Ended, log: str = "log") -> dict[str, Any]:
    """How an attempt ended on all nodes. `log`: where its logs lie."""
    outcomes = set(ended.returned.values())
    if outcomes == {"completed"} and not ended.failures and not ended.lost:
        return {"state": "completed", "exit_code": 0}
    if ended.signal or outcomes & {"preempted", "interrupted"}:
        state = "preempted" if outcomes == {"preempted"} else "interrupted"
        how = "stopped at a step's end" if outcomes else "stopped before it had trained"
        how = "killed: it did not stop in time" if ended.killed else how
        return {"state": state, "message": how, "exit_code": 75 if state == "preempted" else 130}
    planned, starved = job.requested["world_size"], ended.oom_kills > 0
    local = local_world_size(job.config, planned)
    world = len(ended.nodes) * local or planned
    nodes = ended.nodes or range(world)
    found = cause(ended.failures, ended.exits, world, local, ended.lost, starved, log, nodes)
    return {"state": "failed", "exit_code": 1} | found


def _close_ledger(record: dict[str, Any], wall_s: float, end: float) -> None:
    """The job's wall time is the controller's; `other` is what no phase accounts for."""
    phases = record["ledger"]["phases_s"]
    record["ledger"]["wall_s"] = wall_s
    ended = phases.pop("ended", None)
    if ended is None:
        return
    phases["finish"] = end - ended
    edges = phases.pop("load", 0.0) + phases.pop("join", 0.0)
    phases["checkpoint"] = (phases["checkpoint"] or 0.0) + edges
    named = sum(v for k, v in phases.items() if v is not None and k != "other")
    phases["other"] = wall_s - named


def show(record: dict[str, Any], job: Job, console: Console) -> None:
    if record["status"]["state"] in RAN:
        if job.sweep is None:
            terminal.job(record, console)
    else:
        terminal.failure(record, console, traceback=job.sweep is None)


def outcome(record: dict[str, Any], job: Job) -> float | Failed:
    """What a sweeper gets from a job that has a record; the session keeps how it ended."""
    status, verdict = record["status"], record["validity"]["verdict"]
    state = status["state"]
    SESSION.states.append(state)
    if _gate_failed(record, job):
        SESSION.gate_failed = True
    if state in ("interrupted", "preempted"):
        raise Interrupted(state)
    rate = record["throughput"]["sustained_units_per_s"]
    if state != "completed" or verdict != "valid" or rate is None:
        reasons = record["validity"]["reasons"]
        return Failed(state, status["kind"] or verdict, status["message"] or "; ".join(reasons))
    return float(rate)


def told(record: dict[str, Any], job: Job) -> dict[str, Any]:
    """The outcome, for the other nodes."""
    status, validity = record["status"], record["validity"]
    return {
        "state": status["state"],
        "kind": status["kind"],
        "message": status["message"],
        "record": f"{socket.gethostname()}:{job.directory}/result.json",
        "rate": record["throughput"]["sustained_units_per_s"],
        "gate_failed": _gate_failed(record, job),
        "reasons": validity["reasons"],
    }


def _gate_failed(record: dict[str, Any], job: Job) -> bool:
    ran, verdict = record["status"]["state"] in RAN, record["validity"]["verdict"]
    return bool(job.config["strict"]) and ran and verdict != "valid"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
