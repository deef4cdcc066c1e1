"""What loading costs by itself: the loader alone, and handing a batch over from a worker."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.rank.train import Parts
from paceline.rank.world import max_over_ranks
from paceline.types import STOPS, Batch

FEWEST_STEPS = 4
"""Of the loader alone."""

HANDED, FIRST = 30, 5
"""Batches that are handed over, after the first few, in which the worker starts."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Around what starts a loader's workers: it draws no random number of the training, and leaves
    them deaf to the signals that we take, for they must deliver until all ranks stop."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def loader_alone(parts: Parts, steps: int) -> dict[str, float]:
    """Of a step, the slowest rank's. `step_s`: seconds that its batches take when nothing else is
    done, over `steps` of them, or twice the workers' queue, for they deliver in bursts; what they
    had ready is taken first. `cpu_s`: seconds of a core in that, of this process and its workers; a
    loader that waits for a disk or a network needs few. `others_cores`: how many of the cores that
    this process may use others kept busy meanwhile, the other ranks of this node among them.

    Of a loader that can have workers, whether it has any or not: `handover_s`, seconds of this
    process's core to take its batches from a worker that has them ready; `handover_cpu_s`, those of
    both."""
    micro = parts.run.accumulation_steps
    steps = max(steps, 2 * parts.refill_steps, FEWEST_STEPS)
    for _ in range(parts.refill_steps * micro):
        next(parts.batches)
    start, used, busy = time.perf_counter(), _cpu_s(), _busy_s()
    for _ in range(steps * micro - 1):
        next(parts.batches)
    batch = next(parts.batches)
    wall_s, mine_s = time.perf_counter() - start, _cpu_s() - used
    others = max(_busy_s() - busy - mine_s, 0.0) / wall_s
    spent = [wall_s / steps, mine_s / steps, others]
    names = ["step_s", "cpu_s", "others_cores"]
    if hasattr(parts.state.data, "num_workers"):
        spent += [micro * seconds for seconds in _handover(batch)]
        names += ["handover_s", "handover_cpu_s"]
    most = max_over_ranks(torch.tensor(spent, dtype=torch.float64), parts.world)
    return dict(zip(names, most.tolist(), strict=True))


class Same(IterableDataset[Any]):
    """One batch for ever."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Batch]:
        return itertools.repeat(self.batch)


def _handover(batch: Batch) -> tuple[float, float]:
    """Seconds of cores a batch: of this thread, and of this process and the worker."""
    loader: DataLoader[Any] = DataLoader(
        Same(batch), batch_size=None, num_workers=1, collate_fn=_as_it_is
    )
    with starting_workers():
        batches = iter(loader)
    for _ in range(FIRST):
        next(batches)
    mine, all_s = time.thread_time(), _cpu_s()
    for _ in range(HANDED):
        next(batches)
    return (time.thread_time() - mine) / HANDED, (_cpu_s() - all_s) / HANDED


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _busy_s() -> float:
    """Seconds so far in which the cores that this process may use did something."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    each = enumerate(psutil.cpu_times(percpu=True))
    mine = [times for core, times in each if usable is None or core in usable]
    return float(sum(sum(t) - t.idle - getattr(t, "iowait", 0.0) for t in mine))


def _cpu_s() -> float:
    """Seconds of cores used so far by this process and its workers."""
    times = [psutil.Process().cpu_times()]
    for worker in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times.append(worker.cpu_times())
    return float(sum(t.user + t.system for t in times))
