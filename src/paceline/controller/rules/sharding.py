"""Rules of sharded strategies: what fsdp and hsdp need."""

from __future__ import annotations

from paceline.controller.rules.device import on_cuda
from paceline.controller.rules.rule import WORLD, Config, Rules


def _offload(config: Config, choices: Config, world: int) -> str | None:
    if config["strategy"].get("cpu_offload") and not on_cuda(config["run"]):
        return (
            "strategy.cpu_offload=true: the ranks compute on the CPU, there is nothing to move "
            "away from; use strategy.cpu_offload=false"
        )
    return None


def _groups(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") != "hsdp":
        return None
    if world == 1:
        return (
            "strategy=hsdp: it needs at least 2 ranks; raise launch.nproc, or use strategy=single"
        )
    shard = config["strategy"].get("shard_ranks")
    if isinstance(shard, int) and world % shard:
        return (
            f"strategy.shard_ranks={shard}: {world} ranks can't be shared into equal groups; give "
            f"a divisor of {world}"
        )
    return None


RULES: Rules = (
    (("strategy", "run.device"), _offload),
    ((*WORLD,), _groups),
)
