"""How fast what is written lies on the disk. The files have no name: nothing is left, even after a
SIGKILL."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil

MIB = 1024**2
BLOCK = 4 * MIB
SIZE, QUICK_SIZE = 256 * MIB, 64 * MIB
SMALL = 4096
REPEATS = 20
WRITE_S, SMALL_S = 15.0, 2.0
"""No write, or small fsync, is begun after so long; what was done by then is the figure."""


def disk_facts(directory: Path, quick: bool) -> dict[str, Any]:
    """written_bytes; write_s, into the page cache; fsync_s, until all of it was on the disk;
    small_fsync_s: of SMALL bytes appended and synced, the median."""
    facts: dict[str, Any] = {
        "directory": str(directory),
        "file_system": _file_system(directory),
        "free_bytes": None,
        "written_bytes": None,
        "write_s": None,
        "fsync_s": None,
        "small_fsync_s": None,
        "needed_bytes": QUICK_SIZE if quick else SIZE,
        "error": None,
    }
    try:
        facts["free_bytes"] = shutil.disk_usage(directory).free
        if facts["free_bytes"] > 2 * facts["needed_bytes"]:
            facts |= _write(directory, facts["needed_bytes"])
            facts["small_fsync_s"] = _small(directory)
    except OSError as error:
        facts["error"] = error.strerror or str(error)
    return facts


def _write(directory: Path, size: int) -> dict[str, Any]:
    block, written = os.urandom(BLOCK), 0
    with TemporaryFile(dir=directory, buffering=0) as file:
        start = time.perf_counter()
        while written < size and time.perf_counter() - start < WRITE_S:
            written += file.write(block)
        in_cache = time.perf_counter()
        os.fsync(file.fileno())
        on_disk = time.perf_counter()
    return {"written_bytes": written, "write_s": in_cache - start, "fsync_s": on_disk - in_cache}


def _small(directory: Path) -> float:
    block, end = os.urandom(SMALL), time.perf_counter() + SMALL_S
    took: list[float] = []
    with TemporaryFile(dir=directory, buffering=0) as file:
        while len(took) < REPEATS and (not took or time.perf_counter() < end):
            start = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return statistics.median(took)


def _file_system(directory: Path) -> str | None:
    """That of the deepest mount point above the directory: ext4, nfs4, tmpfs, ..."""
    here = directory.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if here.is_relative_to(m.mountpoint)]
    deepest = max(mounts, key=lambda m: len(m.mountpoint), default=None)
    return None if deepest is None else deepest.fstype
