"""The process group of a job: who we are, that all agree, and when all stop."""

from __future__ import annotations

import datetime
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from paceline.types import STOPS, World

_KEPT_ALIVE: list[Any] = []
"""The process groups of this process, until it ends. When the last reference to a gloo group falls
with a DDP module, its destructor joins its threads while it holds the GIL, which one of them may be
waiting for: a deadlock (torch 2.13, one in some hundred jobs)."""


NOT_A_NUMBER = 1000
"""What stops all ranks in a signal's place, when one has seen a loss that is none."""

AGREE_EVERY_S = 1.0
"""A stop flag agreed at every step costs more than many a step; once a second is enough."""


@contextmanager
def open_world(device: str, timeout_s: float, group: bool, store: Any = None) -> Iterator[World]:
    """Join the group of the environment's WORLD_SIZE, prove its size, leave it in the end.

    `group`: make one even for a single rank, which a wrapper may need. `store`: a c10d store that
    is already open (under an outer torchrun). Raises RuntimeError when a collective counts another
    number of ranks than the environment says.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    chosen = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(chosen)
    world = World(rank, local, int(os.environ.get("GROUP_RANK", "0")), size, chosen)
    if world.alone and not group:
        yield world
        return
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=datetime.timedelta(seconds=timeout_s),
        store=store,
        rank=rank if store is not None else -1,
        world_size=size if store is not None else -1,
        device_id=chosen if on_gpu else None,
    )
    _KEPT_ALIVE.append(dist.group.WORLD)
    try:
        counted = int(sum_over_ranks(torch.ones(1), world).item())
        if counted != size:
            raise RuntimeError(f"WORLD_SIZE={size}, but {counted} ranks answered")
        yield world
    finally:
        _KEPT_ALIVE.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()


def short_timeouts(seconds: float) -> bool:
    """Collectives begun from now on wait at most so long, in every group of this process: those
    of device meshes too. Until the first step is done they wait longer, for loading and compiling.
    False: once is enough.
    """
    c10d = dist.distributed_c10d
    for group in c10d._world.pg_map if dist.is_initialized() else ():
        c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)
    return False


def sum_over_ranks(values: torch.Tensor, world: World) -> torch.Tensor:
    """The sum over ranks, on the CPU. Small tensors at the edges of a job, never in the loop."""
    return _reduce(values, world, dist.ReduceOp.SUM)


def max_over_ranks(values: torch.Tensor, world: World) -> torch.Tensor:
    return _reduce(values, world, dist.ReduceOp.MAX)


def gather(value: Any, world: World) -> list[Any]:
    """A small picklable value of every rank, in rank order."""
    if world.alone:
        return [value]
    everyone: list[Any] = [None] * world.world_size
    dist.all_gather_object(everyone, value)
    return everyone


def _reduce(values: torch.Tensor, world: World, op: Any) -> torch.Tensor:
    if world.alone:
        return values.cpu()
    moved = values.to(world.device, copy=True)
    dist.all_reduce(moved, op=op)
    return moved.cpu()


class StopFlag:
    """One of STOPS on any rank stops all of them after the same step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._signal = 0
        self._next = 0
        self._last_step, self._last_time = 0, time.perf_counter()

    def install(self) -> None:
        for number in STOPS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self._signal = number

    def give_up(self) -> None:
        """Stop all ranks: this one's loss is not a number, so that there is nothing to train."""
        self._signal = NOT_A_NUMBER

    @property
    def signal(self) -> int:
        """The signal that was received, agreed over ranks once `agreed` returned True; 0: none."""
        return self._signal

    def agreed(self, step: int, settled: bool) -> bool:
        """After each step: do all ranks stop now? Asks the others about once a second, at steps
        that all ranks know (`settled`: warm-up is over, so that a step's time says something)."""
        if self._world.alone:
            return self._signal != 0
        if step < self._next:
            return False
        now = time.perf_counter()
        step_s = (now - self._last_time) / max(1, step - self._last_step)
        wait = max(1, math.floor(AGREE_EVERY_S / step_s)) if settled else 1
        self._next = step + self._ask(wait)
        self._last_step, self._last_time = step, now
        return self._signal != 0

    def settle(self) -> bool:
        """After the last step: `agreed` without waiting for its turn, for what ranks do next must
        not hang on a signal that only some of them have seen by now."""
        self._ask(0)
        return self._signal != 0

    def _ask(self, wait: int) -> int:
        """The largest signal and `wait` of all ranks."""
        answer = max_over_ranks(torch.tensor([self._signal, wait]), self._world)
        self._signal = int(answer[0])
        return int(answer[1])
