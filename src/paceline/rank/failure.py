"""A rank's own account of its failure, as a file: who, when, where, what kind."""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from paceline.record.failure import MORE_MEMORY, failure_path
from paceline.types import CheckpointError, DataError, Nonfinite, NotTraining

TIMED_OUT = ("timed out", "timeout")
CUT_OFF = ("connection closed by peer", "connection reset", "pair closure")
COMMUNICATION = ("timed out", *CUT_OFF, "gloo", "nccl")
"""What a broken collective says, in lower case; "Application timeout caused pair closure" is what
gloo says of all collectives after one that timed out."""

NO_MEMORY = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",  # the same on Windows
    "cannot allocate memory",  # ENOMEM in words
    "bad_alloc",
    "memoryerror: ",  # numpy's, which a loader worker passes on as a RuntimeError
    "out of memory",  # CUDA's and NCCL's own calls
    "_status_alloc_failed",  # cuBLAS, cuDNN
    "is killed by signal: killed",  # a loader worker, as the kernel does when memory runs out
)
"""What such a RuntimeError says, or an OSError that a loader worker passed on; in lower case."""


def write_failure(
    directory: Path,
    rank: int,
    phase: str,
    step: int | None,
    error: BaseException,
    explained: str | None = None,
) -> None:
    """Leave the account beside the rank's log; `explained`: what to say in the error's own words'
    place. Never raises: the error itself matters more."""
    kind = kind_of(error, phase)
    message = explained or str(error) or type(error).__name__
    if kind == "oom":
        message = f"{explained or str(error) or 'no memory is left'}\n{MORE_MEMORY}"
    account = {
        "time": time.time(),
        "rank": rank,
        "phase": phase,
        "step": error.step if isinstance(error, Nonfinite) else step,
        "kind": kind,
        "communication": is_communication(error),
        "timed_out": is_communication(error) and any(w in str(error).lower() for w in TIMED_OUT),
        "type": type(error).__name__,
        "message": message,
        "explained": explained is not None,
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


def is_out_of_memory(error: BaseException) -> bool:
    """The error, or what it was explicitly raised from, says that memory ran out."""
    return any(
        isinstance(one, torch.OutOfMemoryError | MemoryError)
        or (isinstance(one, OSError) and one.errno == errno.ENOMEM)
        or (isinstance(one, RuntimeError | OSError) and _says_no_memory(str(one).lower()))
        for one in _with_causes(error)
    )


def _is_disk_full(error: BaseException) -> bool:
    full = (errno.ENOSPC, errno.EDQUOT)
    return any(isinstance(one, OSError) and one.errno in full for one in _with_causes(error))


def _says_no_memory(text: str) -> bool:
    return any(words in text for words in NO_MEMORY)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def kind_of(error: BaseException, phase: str) -> str:
    """The record's `status.kind`."""
    module = type(error).__module__
    kinds: list[tuple[bool, str]] = [
        (is_out_of_memory(error), "oom"),
        (isinstance(error, Nonfinite), "nonfinite"),
        (isinstance(error, NotTraining), "error"),
        (_is_disk_full(error), "disk_full"),
        (isinstance(error, CheckpointError), "checkpoint_error"),
        (isinstance(error, DataError), "data_error"),
        (module.startswith(("torch._dynamo", "torch._inductor")), "compile_error"),
        (is_communication(error), "comm_timeout"),
        (phase == "data_wait", "data_error"),
        (phase == "checkpoint", "checkpoint_error"),
    ]
    return next((kind for holds, kind in kinds if holds), "error")
