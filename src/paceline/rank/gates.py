"""Does it still train? Self-contained checks in the ranks, after the measured window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.rank.train import Parts
from paceline.rank.world import gather

GRADS_RTOL = 1e-6
"""An all-reduce gives every rank the same bits; this leaves room for other reductions."""


@dataclass(frozen=True)
class Findings:
    """What the gates saw. `reasons`: one sentence each, empty if all hold."""

    params_changed: bool
    grads_equal: bool | None
    samples_digest: str | None
    samples_used: int | None
    unused_parameters: list[str]
    unused_layers: list[str]
    reasons: list[str]


def fingerprint(model: nn.Module) -> dict[str, int]:
    """A 64-bit hash of each parameter's bytes."""
    return {name: hash_of(p) for name, p in model.named_parameters()}


def init_digest(prints: dict[str, int]) -> str:
    """One hex digest of a whole fingerprint."""
    return xxhash.xxh3_64(repr(sorted(prints.items())).encode()).hexdigest()


def run_gates(parts: Parts, before: dict[str, int], steps_done: int) -> Findings:
    """The gates over `steps_done` steps of this process."""
    reasons = []
    after = fingerprint(parts.state.model)
    trainable = [n for n, p in parts.state.model.named_parameters() if p.requires_grad]
    changed = any(before[name] != after[name] for name in trainable)
    params_changed = any(gather(changed, parts.world))  # of shards, a rank sees its own
    if not params_changed and steps_done:
        reasons.append(
            f"no parameter changed in {steps_done} steps: is the optimizer built on the model's "
            "own parameters?"
        )
    grads_equal = _grads_equal(parts)
    if grads_equal is False:
        reasons.append("after the last step the gradients differ between ranks")
    digest, used, problem = _samples(parts, steps_done)
    if problem:
        reasons.append(problem)
    unused, layers = unused_parameters(parts.state.model)
    return Findings(params_changed, grads_equal, digest, used, unused, layers, reasons)


def unused_parameters(model: nn.Module) -> tuple[list[str], list[str]]:
    """Names of the trainable parameters without a gradient after the last step, and of the
    outermost modules whose trainable parameters are all among them."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    unused = {id(p) for p in trainable.values() if p.grad is None}
    layers: list[str] = []
    for name, module in model.named_modules():
        mine = {id(p) for p in module.parameters() if p.requires_grad}
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        if name and mine and mine <= unused and not inside:
            layers.append(name)
    return [n for n, p in trainable.items() if id(p) in unused], layers


def hash_of(tensor: torch.Tensor) -> int:
    """64 bits of the bytes of this rank's part."""
    raw: Any = local(tensor.detach()).contiguous().cpu().view(-1).view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(raw)


def _grads_equal(parts: Parts) -> bool | None:
    """Are the gradients of the last step the same on all ranks that should hold the same? None
    where there are no two such ranks: alone, or each with a shard of its own."""
    norms = [
        0.0 if p.grad is None else float(local(p.grad.detach()).double().norm())
        for p in parts.state.model.parameters()
    ]
    groups: dict[Any, list[list[float]]] = {}
    for shard, mine in gather((_shard(parts.state.model), norms), parts.world):
        groups.setdefault(shard, []).append(mine)
    several = [np.array(group) for group in groups.values() if len(group) > 1]
    if not several:
        return None
    return all(
        np.allclose(group, group[:1], rtol=GRADS_RTOL, atol=0.0, equal_nan=True)
        for group in several
    )


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shard(model: nn.Module) -> tuple[int, ...]:
    """Which part of the parameters this rank holds, where they are sharded: its coordinates in
    the dimensions of the mesh over which they are."""
    for p in model.parameters():
        if isinstance(p, DTensor):
            place: Any = p.device_mesh.get_coordinate()
            each = zip(place, p.placements, strict=True)
            return tuple(i for i, placement in each if placement.is_shard())
    return ()


def _samples(parts: Parts, steps_done: int) -> tuple[str | None, int | None, str | None]:
    data: Any = parts.state.data
    mine = (data.digest(parts.micro_batches_used), parts.units_used)
    everyone = gather(mine, parts.world)
    if data.sampling != "seeded":
        return None, None, None
    digest = f"{sum(d for d, _ in everyone) % 2**64:016x}"
    used = sum(u for _, u in everyone) // data.units_per_sample
    expected = steps_done * data.global_batch_size
    problem = None
    if used != expected:
        problem = f"{used} samples were used in {steps_done} steps, {expected} are right"
    return digest, used, problem
