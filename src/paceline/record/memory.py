"""From the bytes of a job's parts to what a rank holds, and whether that fits: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30

USABLE = 0.9
"""Share of the memory that a job may plan with: the rest goes to the runtime's own buffers, to
temporaries of an operator, and to gaps between what an allocator gave out."""

WORTH = 0.1
"""Activations below this share of the whole are no way out."""

KEYS = (
    *("parameters_gib", "gradients_gib", "optimizer_gib", "activations_gib"),
    *("ddp_gib", "fsdp_gib", "available_gib", "fits", "advice", "why"),
)


@dataclass(frozen=True)
class Sizes:
    """Bytes, of the whole model and of one micro-batch. `parameters`: buffers too.

    `largest_block`: of its parameters; `outside_blocks`: of all that is in none; `gathered_share`:
    bytes of parameters as FSDP gathers them, in the precision's dtype, over those as they lie.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    largest_block: int
    outside_blocks: int
    gathered_share: float

    def replicated(self, strategy: Mapping[str, Any]) -> int:
        """What a rank holds that has everything: alone, or under DDP, whose buckets are a second
        copy of the gradients unless these are views into them."""
        copies = 2 if strategy.get("gradient_as_bucket_view") is False else 1
        state = self.parameters + copies * self.gradients + self.optimizer
        return state + self.activations

    def sharded(self, strategy: Mapping[str, Any], shards: int) -> int:
        """What a rank holds under FSDP2, at most, in backward: its shard of everything; of what is
        in no block the parameters and gradients, which stay gathered until the end; the parameters
        of the block that computes, of those gathered ahead, of the buffer they are gathered into,
        and the gradients of one; and gradients once more on their way to be averaged."""
        state = self.parameters + self.gradients + self.optimizer
        shard = 0 if strategy.get("cpu_offload") else -(-state // shards)
        inside = (2 + max(1, strategy.get("prefetch") or 0)) * self.largest_block
        if strategy.get("reshard_after_forward") is False:
            inside = self.parameters - self.outside_blocks + self.largest_block
        share = 1.0 if strategy.get("gather_dtype") == "float32" else self.gathered_share
        whole = share * (2 * self.outside_blocks + inside + self.largest_block)
        averaged = max(self.largest_block, self.outside_blocks)
        return shard + round(whole) + averaged + self.activations


def section(
    sizes: Sizes, strategy: Mapping[str, Any], ranks: int, shards: int, available: int
) -> dict[str, Any]:
    """The record's `memory.estimate`: of a rank of a job of `ranks`, in GiB, with advice.

    `strategy`: its settings. `shards`: over how many ranks FSDP would share. `available`: bytes
    that this rank may have.
    """
    ddp, fsdp = sizes.replicated(strategy), sizes.sharded(strategy, shards)
    fits, advice = _advice(sizes, strategy, ranks, (ddp, fsdp), available)
    return {
        "parameters_gib": sizes.parameters / GIB,
        "gradients_gib": sizes.gradients / GIB,
        "optimizer_gib": sizes.optimizer / GIB,
        "activations_gib": sizes.activations / GIB,
        "ddp_gib": ddp / GIB,
        "fsdp_gib": fsdp / GIB,
        "available_gib": available / GIB,
        "fits": fits,
        "advice": advice,
        "why": None,
    }


def unknown(why: str) -> dict[str, Any]:
    """An estimate that can't be had, with the reason."""
    return dict.fromkeys(KEYS) | {"why": why}


def is_sharded(strategy: Mapping[str, Any]) -> bool:
    """Do the settings of a strategy shard the parameters?"""
    return "reshard_after_forward" in strategy


def gib(value: float) -> str:
    """`3.1`, `0.12`: GiB for a reader."""
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _advice(
    sizes: Sizes,
    strategy: Mapping[str, Any],
    ranks: int,
    needs: tuple[int, int],
    available: int,
) -> tuple[bool, str]:
    """(does it fit as it is, what to do)."""
    ddp, fsdp = (gib(need / GIB) for need in needs)
    ddp_fits, fsdp_fits = (need <= USABLE * available for need in needs)
    have, usable = gib(available / GIB), gib(USABLE * available / GIB)
    over = f"FSDP over {ranks} ranks"
    if is_sharded(strategy) and fsdp_fits:
        too = f"; DDP would fit too, with {ddp}" if ddp_fits else f"; DDP needs {ddp}"
        return True, f"fits {over}: {fsdp} of {have} GiB a rank{too}"
    who, rank = ("DDP", " a rank") if ranks > 1 else ("one process", "")
    if not is_sharded(strategy) and ddp_fits:
        return True, f"fits {who}: {ddp} of {have} GiB{rank}"
    if not is_sharded(strategy) and ranks > 1 and fsdp_fits:
        return False, (
            f"use strategy=fsdp: DDP needs {ddp} GiB a rank, {usable} of {have} can be used; "
            f"{over} needs {fsdp}"
        )
    need = f"{over} needs {fsdp}" if is_sharded(strategy) else f"{who} needs {ddp}"
    more = "" if ranks == 1 or is_sharded(strategy) else f", {over} {fsdp}"
    ways = ["more ranks" if is_sharded(strategy) else "strategy=fsdp over more ranks"]
    if sizes.activations > WORTH * max(needs):
        ways.append("activation_checkpointing=blocks")
        ways.append("a smaller micro-batch (run.accumulation_steps)")
    return False, (
        f"does not fit: {need} GiB{rank}{more}, {usable} of {have} can be used; use "
        f"{', '.join(ways[:-1])}{' or ' if ways[:-1] else ''}{ways[-1]}"
    )
