"""Clip the global gradient norm: before every precision's optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def clip_gradients(optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
    """Clip to the global L2 norm `clip`; returns the norm [] f32 before clipping.

    None without clipping: a norm costs as much as a small step, so it isn't taken for the record.
    """
    if clip is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return whole(torch.nn.utils.clip_grad_norm_(parameters, clip))


def whole(norm: Tensor) -> Tensor:
    """The norm over all ranks: that of sharded gradients is a distributed tensor (FSDP)."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
