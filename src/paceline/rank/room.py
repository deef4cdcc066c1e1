"""The memory that a rank may have on this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from paceline.record.environment import CGROUPS, PROC, cgroups
from paceline.types import World

LIMITS = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""Of cgroups v2 and v1: the file of the limit -> that of the use, the key in `memory.stat` of file
pages that nobody used lately, which the kernel drops before it refuses memory."""


def available_bytes(world: World) -> int:
    """CUDA: all memory of the rank's device. CPU: what is free on this host, or is left to the
    cgroups of this process where that is less, shared by the ranks on it."""
    if world.device.type == "cuda":
        return torch.cuda.get_device_properties(world.device).total_memory
    left = [psutil.virtual_memory().available, *left_to_cgroups()]
    return min(left) // world.local_world_size


def shards(strategy: Mapping[str, Any], world: World) -> int:
    """Over how many ranks FSDP shares: all; HSDP: those of a group."""
    asked = strategy.get("shard_ranks")
    return world.world_size if asked is None else world.shard_group(asked)


def left_to_cgroups(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[int]:
    """Bytes that each cgroup may still take, from this process's own up to the root."""
    for cgroup in cgroups("memory", proc, root):
        yield from _left(cgroup)


def _left(cgroup: Path) -> Iterator[int]:
    for limit, (used, dropped) in LIMITS.items():
        try:
            most, now = (int((cgroup / name).read_text()) for name in (limit, used))
            stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file here, or its limit is `max`
            continue
        yield max(0, most - now + int(stat.get(dropped, 0)))
