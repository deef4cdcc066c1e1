"""Does it still train? Self-contained checks in the ranks, after the measured window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

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
    return {name: _hash(p) for name, p in model.named_parameters()}


def init_digest(prints: dict[str, int]) -> str:
    """One hex digest of a whole fingerprint."""
    return xxhash.xxh3_64(repr(sorted(prints.items())).encode()).hexdigest()


def run_gates(parts: Parts, before: dict[str, int], steps_done: int) -> Findings:
    """The gates over `steps_done` steps of this process."""
    reasons = []
    after = fingerprint(parts.state.model)
    trainable = [n for n, p in parts.state.model.named_parameters() if p.requires_grad]
    params_changed = any(before[name] != after[name] for name in trainable)
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


def _hash(tensor: torch.Tensor) -> int:
    raw: Any = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(raw)


def _grads_equal(parts: Parts) -> bool | None:
    """Are all ranks' gradients of the last step the same? None with a single rank."""
    if parts.world.alone:
        return None
    norms = [
        0.0 if p.grad is None else float(p.grad.detach().double().norm())
        for p in parts.state.model.parameters()
    ]
    table = np.array(gather(norms, parts.world))
    return bool(np.allclose(table, table[:1], rtol=GRADS_RTOL, atol=0.0, equal_nan=True))


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
