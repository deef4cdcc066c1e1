"""What a counter-run changes: the job with one cost taken away, or one setting tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from paceline.rank.train import Parts
from paceline.types import Batch, Precision

Change = Callable[[Parts], AbstractContextManager[Parts]]

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose steps look at their groups' `fused` each time, on a CPU too."""


@contextmanager
def eager(parts: Parts) -> Iterator[Parts]:
    """The same code without the compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield parts


@contextmanager
def cached_batch(parts: Parts) -> Iterator[Parts]:
    """One batch again and again, on the device already: what a perfect loader would give."""
    yield on_one_batch(parts)


def on_one_batch(parts: Parts) -> Parts:
    batch = next(parts.batches)
    if parts.deliver is not None:
        batch = parts.deliver(batch)
    return replace(parts, batches=itertools.repeat(batch), deliver=None)


@contextmanager
def double_batch(parts: Parts) -> Iterator[Parts]:
    """Twice the samples in each micro-batch: what doesn't grow with them is overhead."""
    batch = next(parts.batches)
    yield replace(parts, batches=itertools.repeat(_twice(batch)))


@contextmanager
def no_optimizer(parts: Parts) -> Iterator[Parts]:
    """Gradients are neither clipped nor used."""
    idle: Any = Idle(parts.state.precision)
    yield replace(parts, state=replace(parts.state, precision=idle))


@contextmanager
def forward_only(parts: Parts) -> Iterator[Parts]:
    """No backward, so no gradient, communication or optimizer either."""
    forward: Any = ForwardOnly(parts.state.precision)
    alone = parts if parts.world.alone else replace(parts, strategy=NoSync())
    yield replace(alone, state=replace(parts.state, precision=forward))


@contextmanager
def fused_optimizer(parts: Parts) -> Iterator[Parts]:
    """The optimizer's step in one kernel; a setting that is tried, not a cost that is taken away.
    torch keeps the number of steps on the device then, and on the host else."""
    optimizer = parts.state.optimizer
    before = [(group["fused"], group["foreach"]) for group in optimizer.param_groups]
    counts = {p: state["step"] for p, state in optimizer.state.items() if "step" in state}
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    for parameter, count in counts.items():
        optimizer.state[parameter]["step"] = count.to(parameter.device)
    try:
        yield parts
    finally:
        for group, (fused, foreach) in zip(optimizer.param_groups, before, strict=True):
            group["fused"], group["foreach"] = fused, foreach
        for parameter, count in counts.items():
            optimizer.state[parameter]["step"] = count


@contextmanager
def no_sync(parts: Parts) -> Iterator[Parts]:
    """No gradient travels: ranks drift apart, so that this comes last."""
    yield replace(parts, strategy=NoSync())


class NoSync:
    """DDP that never averages."""

    def wrap(self, model: nn.Module, *given: Any) -> nn.Module:
        return model

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()


@contextmanager
def unsearched(parts: Parts) -> Iterator[Parts]:
    """A second DDP around the model, which searches for no unused parameters; the first one's hooks
    do nothing in its steps."""
    ddp = parts.model
    assert isinstance(ddp, DistributedDataParallel)
    second = DistributedDataParallel(
        ddp.module,
        device_ids=ddp.device_ids,
        bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
    )
    parts.state.comm_hook.register(second)
    try:
        yield replace(parts, model=second)
    finally:
        second.reducer._remove_autograd_hooks()


class Idle:
    """A precision whose step does nothing."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self.precision, name)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> None:
        return None


class ForwardOnly(Idle):
    def scale(self, loss: Tensor) -> NoBackward:
        return NoBackward()


class NoBackward:
    def backward(self, seed: Tensor) -> None:
        return None


def why_not_fused(parts: Parts) -> str | None:
    """None where `fused_optimizer` can be tried."""
    optimizer = parts.state.optimizer
    if type(optimizer) not in FUSED:
        return f"{type(optimizer).__name__} has no fused step"
    if any(group["fused"] for group in optimizer.param_groups):
        return "the optimizer is fused already"
    if parts.state.precision.skipped is not None:
        return "the loss scaler was made for a step that isn't fused"
    if any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return "the optimizer's step is compiled"
    return None


def _twice(batch: Batch) -> Batch:
    """[B, ...] -> [2 B, ...] in every tensor of a batch."""
    return tree_map(lambda t: torch.cat([t, t]) if isinstance(t, Tensor) and t.dim() else t, batch)
