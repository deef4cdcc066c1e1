"""Clip the global gradient norm, then step: the end of every precision's optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_and_step(optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
    """Clip to the global L2 norm `clip`, step; returns the norm [] f32 before clipping.

    None without clipping: a norm costs as much as a small step, so it isn't taken for the record.
    """
    norm = None
    if clip is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return norm
