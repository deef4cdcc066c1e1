"""Ranks that save together: all have written, or all hear why not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from paceline.types import CheckpointError, World

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)


def together(world: World, group: Any, work: Callable[[], T]) -> list[T]:
    """What `work` gave on each rank, in rank order: a collective over `group`. Raises the same
    CheckpointError on all ranks when it failed on any, from an OSError where that was the cause."""
    answer: Any = None
    failure: tuple[str, int | None] | None = None
    try:
        answer = work()
    except Exception as error:
        failure = _described(error)
    everyone = gather((answer, failure), world, group)
    for rank, (_, failed) in enumerate(everyone):
        if failed is not None:
            raise_for(rank, *failed)
    return [given for given, _ in everyone]


def raise_for(rank: int, said: str, number: int | None) -> None:
    """Raise what failed on a rank."""
    cause = None if number is None else OSError(number, said)
    full = "; free space, keep fewer (checkpoint.keep_last), or save elsewhere (hydra.run.dir)"
    more = full if number in FULL else ""
    raise CheckpointError(f"rank {rank}: {said}{more}") from cause


def unwrap(error: CheckpointException) -> None:
    """DCP's error of all ranks, as one that this house knows."""
    rank, (cause, _) = next(iter(error.failures.items()))
    raise_for(rank, *_described(cause))


def gather(mine: Any, world: World, group: Any = None) -> list[Any]:
    """A small picklable value of every rank, in rank order."""
    if world.alone:
        return [mine]
    everyone: list[Any] = [None] * world.world_size
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _described(error: BaseException) -> tuple[str, int | None]:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", error.errno
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return str(error) or type(error).__name__, number
