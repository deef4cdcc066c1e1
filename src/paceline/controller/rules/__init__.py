"""Rules between groups: what can't run together, one sentence each, naming keys and way out."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.controller.rules import (
    levers,
    nodes,
    profiler,
    scale,
    scaling,
    sharding,
    steps,
    submitted,
    world,
)
from paceline.controller.rules.device import elsewhere
from paceline.controller.rules.nodes import node_counts, node_rank
from paceline.controller.rules.rule import DEVICE, WORLD, Config, Rules
from paceline.controller.rules.world import local_world_size, world_size

__all__ = [
    "HERE",
    "RULES",
    "broken_here",
    "broken_rules",
    "elsewhere",
    "local_world_size",
    "node_counts",
    "node_rank",
    "world_size",
]


def broken_rules(
    config: Config, choices: Config, ranks: int | None = None, wrong: Iterable[str] = ()
) -> list[str]:
    """Every rule that a config breaks. `wrong`: keys already known to be wrong; a rule that reads
    one of them can't be judged. `ranks`: the number of ranks, if known."""
    wrong = tuple(wrong)
    if ranks is None and not _touches(WORLD, wrong):
        ranks = world_size(config, choices)
    here = () if not _touches(DEVICE, wrong) and elsewhere(config) else HERE
    said = (
        rule(config, choices, ranks or 0)
        for reads, rule in (*RULES, *here)
        if not _touches(reads, wrong) and (ranks is not None or WORLD[0] not in reads)
    )
    return [sentence for sentence in said if sentence]


def _touches(reads: Iterable[str], wrong: Iterable[str]) -> bool:
    """Is one of the keys that are read wrong, or inside a wrong one, or around one?"""
    return any(
        key == bad or key.startswith(f"{bad}.") or bad.startswith(f"{key}.")
        for key in reads
        for bad in wrong
    )


def broken_here(config: Config, choices: Config, ranks: int) -> list[str]:
    """Of a job that was planned elsewhere: what speaks against this machine."""
    said = (rule(config, choices, ranks) for _, rule in HERE)
    return [sentence for sentence in said if sentence]


HERE: Rules = (*nodes.RULES, *world.HERE)
"""Those about the machine that runs the job: not judged before a scheduler has chosen it."""

RULES: Rules = (
    *world.RULES,
    *submitted.RULES,
    *scale.RULES,
    *scaling.RULES,
    *sharding.RULES,
    *steps.RULES,
    *profiler.RULES,
    *levers.RULES,
)
