"""What became of a job that SLURM ended: kind and one sentence with the way out."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

from paceline.checkpoint.shelf import Shelf, step_of
from paceline.controller.session import EXIT_PREEMPTED
from paceline.controller.slurm.book import progress_of
from paceline.controller.slurm.state import UNKNOWN, JobState, signal_name
from paceline.record.failure import MORE_MEMORY

BY_WORD = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_lost",
    "BOOT_FAIL": "node_lost",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "REVOKED": "lost",
    UNKNOWN: "lost",
}
"""SLURM's word for the end -> kind; any other word says only that the script has ended."""

SHELL = 128
"""A shell's exit code for a process that a signal ended, less the signal."""

LOG_LINES, LOG_BYTES = 3, 8192
NOISE = ("srun:", "slurmstepd:")
"""Begin lines of SLURM's own, which follow the one that tells why."""


def ending(
    cell: Path, log: Path, phase: str, state: JobState, own: dict[str, Any], slurm: dict[str, Any]
) -> dict[str, Any]:
    """kind, message, phase, step and exit_code of a job without a final record of its own.

    `log`: of its SLURM job. `phase`: how far the script came. `own`: the last status that the job
    left, empty if it never began. `slurm`: its launch.slurm.
    """
    kind = _kind(state, phase, own)
    done = progress_of(cell)
    step = done.get("step")
    what = _what(kind, state, own, slurm, log)
    how_far = _how_far(kind, state, own, done)
    saved = Shelf(cell / "checkpoint").committed()
    again = f"the same command goes on from step {step_of(saved[-1])}" if saved else ""
    again = again or "the same command starts it again"
    way = _way_out(kind, own, again)
    message = f"{what} (SLURM job {state.id}){how_far}; {way}"
    message += f"; log: {log}" if log.exists() else "; it left no log"
    return {
        "kind": kind,
        "message": message,
        "phase": "setup" if kind == "setup" else own.get("phase") if step is None else None,
        "step": step,
        "exit_code": state.exit_code or (SHELL + state.signal if state.signal else None),
    }


def _kind(state: JobState, phase: str, own: dict[str, Any]) -> str:
    kind = BY_WORD.get(state.word)
    if kind is not None:
        return kind
    if phase == "setup":
        return "setup"
    if own.get("state") in ("preempted", "interrupted") or state.exit_code == EXIT_PREEMPTED:
        return "preempted"
    if _signal(state) is not None:
        return "killed"
    if state.word == "COMPLETED":
        return "lost"
    return "error" if own else "start"


def _signal(state: JobState) -> str | None:
    """Of what ended the script, or what it ran last."""
    if state.signal:
        return signal_name(state.signal)
    return signal_name(state.exit_code - SHELL) if state.exit_code > SHELL else None


def _what(kind: str, state: JobState, own: dict[str, Any], slurm: dict[str, Any], log: Path) -> str:
    code = f"exit code {state.exit_code}"
    if kind == "cancelled":
        by = "" if state.by is None else f" by {_user(state.by)}"
        return f"cancelled{by}"
    if kind == "time_limit":
        return f"stopped at the end of its time (launch.slurm.time={slurm.get('time')})"
    if kind == "node_lost":
        on = f"a node of {state.nodes}" if state.nodes else "a node"
        return f"lost {on}"
    if kind == "oom":
        return f"ran out of memory (launch.slurm.mem={slurm.get('mem')})"
    if kind == "preempted":
        return _preempted(state, own, slurm)
    if kind == "killed":
        return f"ended by {_signal(state)}"
    if kind == "setup":
        return f"launch.slurm.setup failed with {code}: {_last_lines(log)}"
    if kind == "start":
        why = f"SLURM could not start it ({state.reason or state.word})"
        return f"did not start, {code}: {_last_lines(log)}" if state.exit_code else why
    if kind == "error":
        return f"its controller left with {code} and no record: {_last_lines(log)}"
    if state.word == "COMPLETED":
        return "ended well for SLURM, but left no record"
    last = f" ({state.reason})" if state.reason else ""
    return f"SLURM doesn't know it any more{last}, and it left no record"


def _preempted(state: JobState, own: dict[str, Any], slurm: dict[str, Any]) -> str:
    most = slurm.get("max_requeues")
    if own.get("state") == "interrupted":
        return "told to stop with nothing saved, so not queued again"
    if isinstance(most, int) and 0 < most <= state.restarts:
        return f"preempted {state.restarts + 1} times (launch.slurm.max_requeues={most})"
    return f"preempted, and not queued again (launch.slurm.max_requeues={most})"


def _how_far(kind: str, state: JobState, own: dict[str, Any], done: dict[str, Any]) -> str:
    if done.get("step") is not None:
        return f" at step {done['step']} of {done.get('steps')}"
    if kind in ("start", "setup", "error"):
        return ""
    if own:
        return " before its first step"
    waited = f" ({state.reason})" if state.reason else ""
    return (
        f" while it waited{waited}" if state.since is None or not state.nodes else " at its start"
    )


def _way_out(kind: str, own: dict[str, Any], again: str) -> str:
    if kind == "preempted" and own.get("state") == "interrupted":
        return f"checkpoint=sync saves it, a longer launch.slurm.time lets it end; {again}"
    return {
        "time_limit": f"raise launch.slurm.time; {again}",
        "oom": f"raise launch.slurm.mem; {MORE_MEMORY}",
        "preempted": f"raise launch.slurm.max_requeues; {again}",
        "setup": "correct launch.slurm.setup, then type the same command again",
        "start": "the log has the whole of it; then type the same command again",
    }.get(kind, again)


def _user(uid: str) -> str:
    """The name that this machine has for a user id."""
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError):
        return f"user {uid}"


def _last_lines(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(NOISE)] or lines
    return " / ".join(told[-LOG_LINES:]) or "its log is empty"
