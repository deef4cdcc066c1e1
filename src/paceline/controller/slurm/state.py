"""What SLURM says of jobs. Reading it is pure; `look` asks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.controller.slurm import call
from paceline.types import ConfigError

UNKNOWN = "UNKNOWN"

TERMINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""In these a job is over, unless it is about to be queued again."""

NEVER = {
    "PartitionNodeLimit": "launch.nnodes is more than the partition gives",
    "PartitionTimeLimit": "launch.slurm.time is more than the partition gives",
    "PartitionConfig": "no node of launch.slurm.partition has what is asked for",
    "BadConstraints": "no node has what is asked for",
    "DependencyNeverSatisfied": "what launch.slurm.dependency waits for has failed",
    "InvalidAccount": "launch.slurm.account may not be used",
    "InvalidQOS": "launch.slurm.qos may not be used",
    "JobHeld": "it is held: scontrol release",
    "launch failed requeued held": "it could not be started and is held: scontrol release",
}
"""Reasons for which a job waits for ever, by how they begin -> what to say of them."""

ID = re.compile(r"\d+(_(\d+|\[[^\]|]*\]))?(\+\d+)?")
"""12, 12_3 and 12_[4-9%2] of an array, 12+1 of a heterogeneous job; 12.0 and 12.batch are steps."""

NO_NODES = ("", "None assigned", "(null)")
NO_REASON = ("", "None")
NO_TIME = ("", "N/A", "Unknown", "None")


@dataclass(frozen=True)
class JobState:
    """One job as SLURM sees it. `word`: PENDING, RUNNING, FAILED, ..., or UNKNOWN. `reason`: why it
    waits or ended, or "". `nodes`: as n[1-2], or "". `signal`: the number that ended it, or 0.
    `over`: it won't run again. `since`: when it was started, ISO without zone. `by`: the user id of
    who cancelled it."""

    id: str
    word: str
    reason: str
    nodes: str
    exit_code: int
    signal: int
    restarts: int
    over: bool
    since: str | None = None
    by: str | None = None


def look(ids: Iterable[str]) -> dict[str, JobState]:
    """The state of each of these jobs: first by squeue, where one that is queued again is PENDING
    while sacct has its last end; then by sacct. Raises ConfigError when squeue can't be asked.

    UNKNOWN: neither knows it any more, and it is over; or sacct can't be asked now, and it isn't.
    """
    asked = list(dict.fromkeys(ids))
    queued = read_squeue(call.squeue(asked)) if asked else {}
    rest = [id for id in asked if id not in queued or queued[id].word == "CANCELLED"]
    kept, trouble = _accounted(rest)
    found = {}
    for id in asked:
        state = queued.get(id) or kept.get(id)
        if state is None:
            state = JobState(id, UNKNOWN, trouble, "", 0, 0, 0, over=not trouble)
        elif id not in queued and not state.over:
            # its end hasn't reached the accounts, or never will
            state = replace(state, word=UNKNOWN, reason=f"last {state.word}", over=True)
        elif id in queued and id in kept:
            state = replace(state, by=kept[id].by)  # squeue doesn't say who
        found[id] = state
    return found


def _accounted(ids: list[str]) -> tuple[dict[str, JobState], str]:
    """What sacct knows of them, and why it can't be asked now."""
    try:
        return (read_sacct(call.sacct(ids) or "") if ids else {}), ""
    except ConfigError as error:
        return {}, str(error)


def read_squeue(text: str) -> dict[str, JobState]:
    """Of the lines that `call.squeue` gives; others are left out."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != len(call.SQUEUE) + 1 or fields[-1]:
            continue
        id, word, reason, nodes, restarts, status, since, _ = fields
        code = _wait_status(status)
        if ID.fullmatch(id) and _is_word(word) and restarts.isdecimal() and code is not None:
            found[id] = _state(id, word, reason, nodes, code, int(restarts), since)
    return found


def read_sacct(text: str) -> dict[str, JobState]:
    """Of the lines that `call.sacct` gives: of each job the last start; others are left out."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != len(call.SACCT):
            continue
        id, said, reason, nodes, status, since = fields
        word, _, by = said.partition(" by ")
        code = _code_and_signal(status)
        if ID.fullmatch(id) and _is_word(word) and code is not None:
            restarts = found[id].restarts + 1 if id in found else 0
            state = _state(id, word, reason, nodes, code, restarts, since)
            found[id] = replace(state, by=by or None)
    return found


def _state(
    id: str,
    word: str,
    reason: str,
    nodes: str,
    code: tuple[int, int],
    restarts: int,
    since: str,
) -> JobState:
    return JobState(
        id=id,
        word=word,
        reason="" if reason in NO_REASON else reason,
        nodes="" if nodes in NO_NODES else nodes,
        exit_code=code[0],
        signal=code[1],
        restarts=restarts,
        over=word in TERMINAL,
        since=None if since in NO_TIME else since,
    )


def _is_word(text: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Z_]*", text) is not None


def _wait_status(text: str) -> tuple[int, int] | None:
    """Exit code and signal of what wait(2) gives; newer commands write them apart."""
    if ":" in text:
        return _code_and_signal(text)
    if not text.isdecimal():
        return None
    return int(text) >> 8 & 0xFF, int(text) & 0x7F


def _code_and_signal(text: str) -> tuple[int, int] | None:
    code, colon, number = text.partition(":")
    if not (colon and code.isdecimal() and number.isdecimal()):
        return None
    return int(code), int(number)


def signal_name(number: int) -> str | None:
    """SIGKILL for 9; None for what is none of this machine's (53: SLURM could not start it)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
