"""Started by an outer torchrun: its processes become the ranks, only RANK 0 enters Hydra.

RANK 0 composes, checks and writes job.yaml, then hands its path on through torchrun's store, so
that one job has one config and one directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from paceline.controller.launch import Ended
from paceline.record.failure import read_failures

KEY, DISMISSED = "paceline/job", "dismissed "


def adopted() -> bool:
    """Is this process one of several that a launcher started?"""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def open_store() -> Any:
    """The c10d store of the launcher; ranks meet in it before any config is known."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://")))
    return store


def follow() -> int:
    """What every rank but 0 does: wait for the job, run it; the process's exit code."""
    store = open_store()
    path = store.get(KEY).decode()
    if path.startswith(DISMISSED):
        return int(path.removeprefix(DISMISSED))
    rank = os.environ["RANK"]
    log = Path(path).parent / "log" / f"rank{rank}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    ended = _run(path, time.perf_counter(), store)
    return 1 if ended.exits else 0


def dismiss(store: Any, code: int) -> None:
    """Have the other ranks end alike, in case there was no job for them. Not before RANK 0 has
    said why: the launcher ends all ranks as soon as one has failed."""
    store.set(KEY, f"{DISMISSED}{code}")


def run_adopted(job_yaml: Path, start: float, store: Any) -> Ended:
    """Hand the job to the other ranks and run this one's part."""
    store.set(KEY, str(job_yaml))
    return _run(str(job_yaml), start, store)


def leave(code: int) -> None:
    """End a rank's own interpreter without its teardown, in which gloo aborts now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(path: str, start: float, store: Any) -> Ended:
    from torch._C._distributed_c10d import PrefixStore

    from paceline.rank.main import run

    rank = int(os.environ["RANK"])
    try:
        ended = Ended(returned={rank: run(path, start, PrefixStore("paceline/group", store))})
    except Exception:  # rank.main has left this rank's account
        ended = Ended(exits={rank: 1})
    ended.failures = read_failures(Path(path).parent)
    return ended
