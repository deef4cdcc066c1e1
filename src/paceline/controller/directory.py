"""A job's directory: exclusive, stable over restarts, and nothing in it is ever overwritten."""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.record.schema import RAN, read_json
from paceline.types import ConfigError

FROZEN, NODE_FROZEN = "job.yaml", "node.yaml"
"""All that a rank ever reads: on node 0, and on any other, whose directory is no job of its own."""

KEPT = ("checkpoint", ".hydra", FROZEN, NODE_FROZEN, ".lock", "attempts", "slurm")
"""What a second attempt goes on with; all else belongs to the attempt that wrote it."""

NODE = re.compile(r"node\d+")
"""Directories of other nodes on the same file system: each sets its own aside."""


@contextmanager
def claim(directory: Path) -> Iterator[None]:
    """Hold the directory (made if missing) for as long as this process lives or the block runs.

    Raises ConfigError when another process holds it, or when it can't be written.
    """
    path = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(
            [f"{directory} can't be written ({error.strerror}); choose another hydra.run.dir"]
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 100).decode() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            [
                f"{directory} is in use by a running paceline (process {holder.strip()}); wait "
                "for it, or measure the same again with repeat=1 or another tag=..."
            ]
        ) from error
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def finished(directory: Path) -> dict[str, Any] | None:
    """The record of a job that ran to its end here, if there is one."""
    record = read_json(directory / "result.json")
    return record if record and record["status"]["state"] in RAN else None


def set_aside(directory: Path) -> None:
    """Move what an earlier, unfinished attempt left to attempts/{n}."""
    left = [p for p in directory.iterdir() if p.name not in KEPT and not NODE.fullmatch(p.name)]
    if not any((directory / sign).exists() for sign in ("status.json", NODE_FROZEN)):
        return
    number = len(list((directory / "attempts").glob("*"))) + 1
    attempt = directory / "attempts" / f"{number:03d}"
    attempt.mkdir(parents=True)
    for path in left:
        shutil.move(path, attempt / path.name)


def earlier_attempts(directory: Path) -> list[tuple[dict[str, Any] | None, float | None]]:
    """Record and wall time of each, the oldest first. One that was killed left no record: None, and
    the time until it was last heard of."""
    found = []
    for path in sorted(directory.glob("attempts/*")):
        record = read_json(path / "result.json")
        wall_s = _heard_s(path) if record is None else record["ledger"]["wall_s"]
        found.append((record, wall_s))
    return found


def _heard_s(attempt: Path) -> float | None:
    """From the start of its controller to the last word of its ranks; None: it never got so far."""
    try:
        started: str = (read_json(attempt / "status.json") or {})["job"]["started_at"]
        heard = (attempt / "log" / "progress.json").stat().st_mtime
        return max(0.0, heard - datetime.datetime.fromisoformat(started).timestamp())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_log(directory: Path, restart: int) -> None:
    """Before ranks are started again: move what the attempt before left to log/restart{n}."""
    log = directory / "log"
    kept = log / f"restart{restart}"
    kept.mkdir()
    results = [directory / name for name in ("result.json", "steps.npz")]
    for path in [*log.iterdir(), *results]:
        if path.exists() and not path.name.startswith("restart"):
            shutil.move(path, kept / path.name)
