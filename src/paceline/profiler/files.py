"""Traces on their way to the disk: checked, bounded, compressed, and where viewers look."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import time
from pathlib import Path

import torch

COMPRESSION = 5
"""gzip's level: 9, its default, takes five times as long for a few percent."""

TAIL = 4096


class TooLarge(Exception):
    """The trace is larger than it may be: `size`, in bytes of JSON."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def size_of(profile: torch.profiler.profile, raw: Path) -> int:
    """Bytes that the trace takes as JSON; `raw`: where it may be written for that, not to stay."""
    try:
        return _export(profile, raw)
    finally:
        raw.unlink(missing_ok=True)


def write_trace(
    profile: torch.profiler.profile, path: Path, raw: Path, most: int
) -> dict[str, int]:
    """The Chrome trace in `path`, whole or not at all; `raw`: as it is before it is compressed.

    Returns the bytes of both. Raises TooLarge for more than `most` bytes of JSON, OSError where
    the disk doesn't take it.
    """
    compressed = raw.with_suffix(".gz")
    try:
        size = _export(profile, raw)
        if size > most:
            raise TooLarge(size)
        with raw.open("rb") as source, gzip.open(compressed, "wb", COMPRESSION) as sink:
            shutil.copyfileobj(source, sink, 2**20)
        os.replace(compressed, path)
    finally:
        raw.unlink(missing_ok=True)
        compressed.unlink(missing_ok=True)
    return {"trace_bytes": size, "compressed_bytes": path.stat().st_size}


def for_tensorboard(path: Path, rank: int) -> str:
    """The same trace in tb/, under the name that torch's tensorboard_trace_handler gives, which is
    what plugins look for: a hard link, a copy where the file system has none. From the job's
    directory."""
    folder = path.parents[1] / "tb"
    folder.mkdir(exist_ok=True)
    named = folder / f"rank{rank}.{time.time_ns()}.pt.trace.json.gz"
    try:
        os.link(path, named)
    except OSError:
        shutil.copyfile(path, named)
    return f"tb/{named.name}"


def _export(profile: torch.profiler.profile, raw: Path) -> int:
    """Bytes written. Raises OSError: torch says nothing of a file that it can't open, or that ends
    in the middle because the disk is full."""
    raw.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(raw))
    with raw.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        tail = file.read().rstrip()
    if not (tail.endswith(b"}") and b'"traceName"' in tail):
        raise OSError(errno.ENOSPC, "the trace ends in the middle: is the disk full?", str(raw))
    return size
