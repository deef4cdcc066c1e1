"""Run one planned job: claim its directory, start the ranks, complete and show its record."""

from __future__ import annotations

import datetime
import os
import signal
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from paceline import config as checker
from paceline.controller.adopt import run_adopted
from paceline.controller.directory import claim, finished, set_aside
from paceline.controller.launch import Ended, run_ranks
from paceline.controller.plan import Job
from paceline.controller.session import SESSION, Interrupted
from paceline.controller.watch import Watch
from paceline.record.failure import MORE_MEMORY, read_failures
from paceline.record.schema import RAN, empty_record, read_json, write_json
from paceline.report import tensorboard, terminal
from paceline.types import Failed

OWN_ERRORS = ("DataError", "Nonfinite", "CheckpointError")
"""Their messages are whole sentences; any other error is shown with its type."""


def run_job(job: Job, console: Console) -> float | Failed:
    """The job's sustained rate, or why it has none. A job that is finished is shown, not run.

    Raises Interrupted when it was told to stop, ConfigError when its directory is in use.
    """
    with claim(job.directory):
        record = finished(job.directory)
        if record is None:
            record = _measure(job, console)
        else:
            console.print(f"[dim]finished before: {job.name}[/dim]", highlight=False)
    _show(record, job, console)
    rate = outcome(record, job)
    if SESSION.signal and job.sweep is not None:  # it came to its end first; the next one won't run
        SESSION.states.append("interrupted")
        raise Interrupted("interrupted")
    return rate


def freeze(job: Job) -> Path:
    """Write job.yaml: all that a rank ever reads."""
    path = job.directory / "job.yaml"
    frozen = {
        "name": job.name,
        "identity": {"config_hash": job.config_hash, "work_hash": job.work_hash},
        "overrides": job.overrides,
        "requested": job.requested,
        "config": job.config,
    }
    temporary = path.with_name(f".job.yaml.{os.getpid()}")
    temporary.write_text(yaml.safe_dump(frozen, sort_keys=False))
    os.replace(temporary, path)
    return path


def _measure(job: Job, console: Console) -> dict[str, Any]:
    set_aside(job.directory)
    (job.directory / "log").mkdir(exist_ok=True)
    job_yaml = freeze(job)
    section = job.section(SESSION.command) | {"started_at": now()}
    status = job.directory / "status.json"
    write_json(status, {"job": section, "status": {"state": "running", "phase": "startup"}})
    start = time.perf_counter()
    launch, adopted = job.config["launch"], SESSION.store is not None
    # an outer launcher shows its ranks' output itself
    with Watch(job.directory, 0 if adopted else job.requested["world_size"], console):
        if adopted:
            ended = run_adopted(job_yaml, start, SESSION.store)
        else:
            world_size = job.requested["world_size"]
            ended = run_ranks(job_yaml, world_size, launch["stop_grace_s"], start)
            SESSION.signal = ended.signal
    record = complete(job, section, ended, start, time.perf_counter())
    write_json(job.directory / "result.json", record)
    write_json(status, {"job": record["job"], "status": record["status"]})
    if record["status"]["state"] in RAN:
        tensorboard.write(job.directory, record)
    return record


def complete(
    job: Job, section: dict[str, Any], ended: Ended, start: float, end: float
) -> dict[str, Any]:
    """The ranks' part of the record with what only the controller knows; or a failure's record."""
    record = read_json(job.directory / "result.json") or empty_record()
    record["job"] |= section
    record["requested"] = job.requested
    record["status"] |= _status(job, ended, record)
    _close_ledger(record, end - start, end)
    if record["status"]["state"] in RAN:
        units = record["throughput"]["units_used"]
        record["throughput"]["end_to_end_units_per_s"] = units / record["ledger"]["wall_s"]
        diagnose = checker.build(job.config["diagnose"])
        record["diagnosis"] |= diagnose.explain(record)
    return record


def _status(job: Job, ended: Ended, record: dict[str, Any]) -> dict[str, Any]:
    failures = read_failures(job.directory)
    outcomes = set(ended.returned.values())
    if outcomes == {"completed"} and not failures:
        trained = record["validity"]["verdict"] != "not_training"
        return {"state": "completed" if trained else "invalid", "exit_code": 0}
    if ended.signal or outcomes & {"preempted", "interrupted"}:
        state = "preempted" if outcomes == {"preempted"} else "interrupted"
        how = "stopped at a step's end" if outcomes else "stopped before it had trained"
        how = "killed: it did not stop in time" if ended.killed else how
        return {"state": state, "message": how, "exit_code": 75 if state == "preempted" else 130}
    return {"state": "failed", "exit_code": 1} | _cause(
        failures, ended, job.requested["world_size"]
    )


def _cause(failures: list[dict[str, Any]], ended: Ended, world_size: int) -> dict[str, Any]:
    """The rank whose account names a cause of its own, else the one that left no account: a rank
    that dies without a word breaks the collectives of all others."""
    silent = sorted(set(range(world_size)) - {f["rank"] for f in failures})
    broken = [f["rank"] for f in failures if f["communication"]]
    if failures and not (failures[0]["communication"] and silent):
        keys = ("kind", "phase", "step", "rank", "traceback")
        cause = {key: failures[0][key] for key in keys} | {"message": _sentence(failures[0])}
    else:
        rank = next((r for r in ended.exits if r in silent), silent[0])
        code = ended.exits.get(rank)
        starved = ended.oom_kills > 0 and code == -signal.SIGKILL
        cause = {
            "kind": "oom" if starved else "worker_died",
            "rank": rank,
            "message": _death(rank, code) + (f"\n{MORE_MEMORY}" if starved else ""),
        }
        cause |= {key: failures[0][key] if failures else None for key in ("phase", "step")}
    others = [str(r) for r in sorted({*silent, *broken}) if r != cause["rank"]]
    if others:
        words = f"rank{'s' * (len(others) > 1)} {', '.join(others)}"
        cause["message"] += f"\n{words}: terminated because of rank {cause['rank']}"
    return cause


def _sentence(failure: dict[str, Any]) -> str:
    kind, message = failure["type"], failure["message"]
    in_our_words = failure["explained"] or kind in OWN_ERRORS or kind == message
    return message if in_our_words else f"{kind}: {message}"


def _death(rank: int, code: int | None) -> str:
    if code is None:
        return f"rank {rank} ended without a word; see log/rank{rank}.log"
    if code >= 0:
        return f"rank {rank} left with exit code {code}; see log/rank{rank}.log"
    name = signal.Signals(-code).name
    why = " (as the kernel does when memory runs out)" if name == "SIGKILL" else ""
    return f"rank {rank} was ended by {name}{why}; see log/rank{rank}.log"


def _close_ledger(record: dict[str, Any], wall_s: float, end: float) -> None:
    """The job's wall time is the controller's; `other` is what no phase accounts for."""
    phases = record["ledger"]["phases_s"]
    record["ledger"]["wall_s"] = wall_s
    ended = phases.pop("ended", None)
    if ended is None:
        return
    phases["finish"] = end - ended
    phases["checkpoint"] = (phases["checkpoint"] or 0.0) + phases.pop("load", 0.0)
    named = sum(v for k, v in phases.items() if v is not None and k != "other")
    phases["other"] = wall_s - named


def _show(record: dict[str, Any], job: Job, console: Console) -> None:
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
    if job.config["strict"] and state in RAN and verdict != "valid":
        SESSION.gate_failed = True
    if state in ("interrupted", "preempted"):
        raise Interrupted(state)
    rate = record["throughput"]["sustained_units_per_s"]
    if state != "completed" or verdict != "valid" or rate is None:
        reasons = record["validity"]["reasons"]
        return Failed(state, status["kind"] or verdict, status["message"] or "; ".join(reasons))
    return float(rate)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
