"""A rank's own account of its failure, as a file: who, when, where, what kind."""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from pathlib import Path

import torch

from paceline.record.failure import failure_path
from paceline.types import CheckpointError, DataError, Nonfinite

COMMUNICATION = ("connection closed by peer", "connection reset", "timed out", "gloo", "nccl")


def write_failure(
    directory: Path, rank: int, phase: str, step: int | None, error: BaseException
) -> None:
    """Leave the account beside the rank's log. Never raises: the error itself matters more."""
    account = {
        "time": time.time(),
        "rank": rank,
        "phase": phase,
        "step": error.step if isinstance(error, Nonfinite) else step,
        "kind": kind_of(error, phase),
        "communication": is_communication(error),
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "traceback": "".join(traceback.format_exception(error)),
    }
    path = failure_path(directory, rank)
    try:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(account))
        os.replace(temporary, path)
    except OSError as problem:
        print(f"ERROR cannot write {path}: {problem}", flush=True)


def is_communication(error: BaseException) -> bool:
    """A collective that broke, as it does on every other rank once one rank has died."""
    if isinstance(error, torch.distributed.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in COMMUNICATION)


def kind_of(error: BaseException, phase: str) -> str:
    """The record's `status.kind`."""
    module = type(error).__module__
    kinds: list[tuple[bool, str]] = [
        (isinstance(error, torch.OutOfMemoryError | MemoryError), "oom"),
        (isinstance(error, Nonfinite), "nonfinite"),
        (isinstance(error, OSError) and error.errno == errno.ENOSPC, "disk_full"),
        (isinstance(error, CheckpointError), "checkpoint_error"),
        (isinstance(error, DataError), "data_error"),
        (module.startswith(("torch._dynamo", "torch._inductor")), "compile_error"),
        (is_communication(error), "comm_timeout"),
        (phase == "data_wait", "data_error"),
        (phase == "checkpoint", "checkpoint_error"),
    ]
    return next((kind for holds, kind in kinds if holds), "error")
