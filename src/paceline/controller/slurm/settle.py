"""When SLURM has ended a job that left no end of its own: a typed record, by whoever looks."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.controller.directory import claim, set_aside
from paceline.controller.frozen import read_job
from paceline.controller.plan import Job
from paceline.controller.slurm.book import (
    JOBS,
    Book,
    Entry,
    progress_of,
    read_book,
    started_at,
    status_of,
)
from paceline.controller.slurm.ending import ending
from paceline.controller.slurm.script import FOLDER
from paceline.controller.slurm.state import UNKNOWN, JobState
from paceline.record.schema import RAN, empty_record, read_json, write_json
from paceline.types import ConfigError

SEEN, LOCK = "seen_over.json", ".settle.lock"

FINAL = (*RAN, "failed", "skipped")
"""States that stay, whatever SLURM says; `preempted` and `interrupted` go on if it runs again."""

APART_S = 2.0
"""Between two looks that both see a job over: one that is queued again passes through the end."""

QUIET_S = 30.0
"""A job that SLURM doesn't know is over only if nothing of it was written for this long: on some
clusters it is forgotten before its end has reached the accounts."""


@dataclass(frozen=True)
class CellView:
    """One job as SLURM and its own files show it. `state`: of the record if it has a final one,
    else pending, running, or, when its SLURM job is over, what it left. `word`, `reason`, `nodes`,
    `since`, `restarts`: of its SLURM job. `started`: the end of that is its own end, so that it
    gets a record then; false for a job of an allocation that hasn't come to it."""

    name: str
    id: str
    word: str
    reason: str
    nodes: str
    since: str | None
    restarts: int
    state: str
    started: bool
    step: int | None
    steps: int | None
    units_per_s: float | None
    message: str | None


def progress(directory: Path, states: Mapping[str, JobState]) -> list[CellView]:
    """Every submitted job of a directory, in the order in which they were; one that `states` lacks
    is UNKNOWN."""
    book = read_book(directory)
    if book is None:
        return []
    told = {entry.name for id in book.ids for entry in _told(book, id)}
    unknown = JobState("", UNKNOWN, "", "", 0, 0, 0, over=False)
    return [_view(e, states.get(e.id, unknown), e.name in told) for e in book.entries]


def settle(directory: Path, states: Mapping[str, JobState]) -> list[str]:
    """Names of the jobs that got a record now. `states`: one look at them; a job must be seen over
    by two that are APART_S apart, which slurm/seen_over.json remembers. Harmless when several do
    it at once, or again; nothing is written where the directory may not be written.
    """
    book = read_book(directory)
    if book is None:
        return []
    settled = []
    with _one_at_a_time(book.root / FOLDER) as mine:
        for id in _seen_twice(book, states) if mine else ():
            for entry in _told(book, id):
                if _leave_record(entry, states[id]):
                    settled.append(entry.name)
    return settled


def typed(job: Job, kind: str, message: str) -> dict[str, Any]:
    """The record of a job that failed and couldn't say so itself; written, and returned."""
    status = {"kind": kind, "message": message}
    return _write(job.directory, job.section(), job.requested, empty_record(), status)


def _told(book: Book, id: str) -> list[Entry]:
    """The jobs whose end is that of this SLURM job. In an allocation: those that have begun, or
    the first if none has; the others wait for another one."""
    entries = [entry for entry in book.entries if entry.id == id]
    if entries[0].alone:
        return entries
    return [entry for entry in entries if status_of(entry.cell)] or entries[:1]


def _view(entry: Entry, state: JobState, told: bool) -> CellView:
    own = status_of(entry.cell)
    done = progress_of(entry.cell)
    shown = own.get("state")
    if shown not in FINAL and not state.over:
        began = bool(own) or entry.alone
        shown = "pending" if state.word == "PENDING" or not began else "running"
        if state.word == UNKNOWN:
            shown = own.get("state") or "pending"
    elif shown not in (*FINAL, "preempted", "interrupted"):
        shown = "interrupted" if told else "pending"
    return CellView(
        name=entry.name,
        id=entry.id,
        word=state.word,
        reason=state.reason,
        nodes=state.nodes,
        since=state.since,
        restarts=state.restarts,
        state=shown,
        started=told,
        step=done.get("step"),
        steps=done.get("steps"),
        units_per_s=done.get("units_per_s"),
        message=own.get("message"),
    )


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[bool]:
    """False where nothing may be written."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)


def _seen_twice(book: Book, states: Mapping[str, JobState]) -> list[str]:
    """Ids of jobs that an earlier look, long enough ago, saw over too."""
    path = book.root / FOLDER / SEEN
    try:
        before = read_json(path) or {}
    except ValueError:
        before = {}
    now = time.time()
    over = {id: state for id, state in states.items() if state.over and id in book.ids}
    seen = {id: when for id, when in before.items() if id in over or id not in states}
    seen |= {id: now for id in over if id not in seen}
    if seen != before:
        write_json(path, seen)
    again = [id for id in over if abs(now - seen[id]) >= APART_S]
    return [id for id in again if over[id].word != UNKNOWN or _quiet(book, id, now)]


def _quiet(book: Book, id: str, now: float) -> bool:
    files = [book.root / FOLDER / JOBS]
    for entry in book.entries:
        if entry.id == id:
            names = ("status.json", "result.json", "log/progress.json")
            files += [entry.log, *(entry.cell / name for name in names)]
    return now - max(path.stat().st_mtime for path in files if path.exists()) >= QUIET_S


def _leave_record(entry: Entry, state: JobState) -> bool:
    """False when the job has a final record of its own, or is alive after all."""
    cell = entry.cell
    try:
        with claim(cell):
            record = _own_record(cell)
            own = status_of(cell)
            if record["status"]["state"] in FINAL:
                if own.get("state") not in FINAL:  # it was ended between the two files
                    _write_status(cell, record)
                return False
            own |= {key: v for key, v in record["status"].items() if v}
            record["job"]["started_at"] = record["job"]["started_at"] or started_at(cell)
            try:
                job = read_job(cell)
                section, requested = job.section() | _scheduled(state), job.requested
                slurm = job.config["launch"]["slurm"]
            except ConfigError:
                section, requested, slurm = {"name": entry.name, "dir": str(cell)}, {}, {}
            status = ending(cell, entry.log, _phase(entry), state, own, slurm)
            _write(cell, section, requested, record, status)
            return True
    except (ConfigError, OSError):
        return False


def _scheduled(state: JobState) -> dict[str, Any]:
    """As `record.environment.scheduled`, of another job than the one that this process is in."""
    number, nodes = state.id, state.nodes or None
    known = {"job_id": number, "restarts": state.restarts, "nodes": nodes}
    return {"scheduler": {"kind": "slurm", **known, "partition": None}}


def _own_record(cell: Path) -> dict[str, Any]:
    """What the job left of a record; one that can't be read is set aside."""
    try:
        return read_json(cell / "result.json") or empty_record()
    except ValueError:
        set_aside(cell)
        return empty_record()


def _write(
    cell: Path,
    section: dict[str, Any],
    requested: dict[str, Any],
    record: dict[str, Any],
    status: dict[str, Any],
) -> dict[str, Any]:
    """The figures that `record` has stay; its status is replaced."""
    empty = empty_record()
    record["job"] = section | {key: v for key, v in record["job"].items() if v is not None}
    record["requested"] = record["requested"] or requested
    restarts = record["status"]["restarts"]
    record["status"] = empty["status"] | {"state": "failed", "restarts": restarts} | status
    write_json(cell / "result.json", record)
    _write_status(cell, record)
    return record


def _write_status(cell: Path, record: dict[str, Any]) -> None:
    write_json(cell / "status.json", {"job": record["job"], "status": record["status"]})


def _phase(entry: Entry) -> str:
    try:
        return entry.phase.read_text().strip()
    except OSError:
        return ""
