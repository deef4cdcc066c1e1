"""Rules of sharded strategies: what fsdp and hsdp need."""

from __future__ import annotations

import math

from paceline.controller.rules.device import on_cuda
from paceline.controller.rules.rule import DEVICE, WORLD, Config, Rules
from paceline.controller.rules.world import local_world_size, world_sizes


def _offload(config: Config, choices: Config, world: int) -> str | None:
    if config["strategy"].get("cpu_offload") and not on_cuda(config):
        return (
            "strategy.cpu_offload=true: the ranks compute on the CPU, there is nothing to move "
            "away from; use strategy.cpu_offload=false"
        )
    return None


def _groups(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") != "hsdp":
        return None
    possible = world_sizes(config, world)
    if possible[0] == 1:
        return (
            "strategy=hsdp: it needs at least 2 ranks; raise launch.nproc, or use strategy=single"
        )
    shard, local = config["strategy"].get("shard_ranks"), local_world_size(config, world)
    # auto: as World.shard_group has it
    groups = {n: local if local < n else n // 2 for n in possible}
    groups |= dict.fromkeys(possible, shard) if isinstance(shard, int) else {}
    uneven = [ranks for ranks, group in groups.items() if ranks % group]
    if uneven:
        return (
            f"strategy.shard_ranks={shard}: {uneven[-1]} ranks can't be shared into equal groups; "
            f"give a divisor of {math.gcd(*possible)}"
        )
    return None


RULES: Rules = (
    (("strategy", *DEVICE), _offload),
    ((*WORLD,), _groups),
)
