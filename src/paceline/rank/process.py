"""What is set once in a rank's process, in one visible place, before anything is built."""

from __future__ import annotations

import ctypes
import io
import logging
import random
import signal
import sys
import warnings

import numpy as np
import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEEP_BYTES = 1 << 30
LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc accepts no larger one on 64 bits (HEAP_MAX_SIZE / 2)."""

PR_SET_PDEATHSIG = 1


def keep_freed_memory() -> bool:
    """launch.host_memory=steady: the allocator keeps what is freed instead of giving it back, so
    that page faults of a step don't differ from process to process. False: this C library can't.

    The same settings as MALLOC_TOP_PAD_, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ in the
    environment, but they hold for one rank, under any launcher, and can be swept.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done = [
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD),
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES),
        mallopt(M_TOP_PAD, 64 << 20),
    ]
    return all(done)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, however that dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def log_to_stdout() -> None:
    """Lines `LEVEL message`: the controller shows warnings and errors of every rank by them."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    warnings.formatwarning = _one_line
    logging.captureWarnings(True)
    # a log file is block-buffered otherwise, and nobody could watch the job
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"{category.__name__}: {message} ({filename}:{lineno})"
