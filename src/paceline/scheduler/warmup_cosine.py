"""Linear warm-up, then half a cosine down to a fraction of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR

from paceline.types import Context, at_least


@dataclass(frozen=True)
class WarmupCosine:
    """Steps are optimizer steps. A warm-up longer than `total_steps` is cut off there."""

    warmup_steps: int
    total_steps: int
    final_fraction: float

    def __post_init__(self) -> None:
        at_least(0, warmup_steps=self.warmup_steps)
        at_least(1, total_steps=self.total_steps)
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(
                f"final_fraction={self.final_fraction}: give a share of the learning rate, 0 to 1"
            )

    def open(self, context: Context, optimizer: torch.optim.Optimizer) -> LambdaLR:
        # a plain function: LambdaLR's state_dict then holds no settings, only the step
        return LambdaLR(optimizer, lambda step: self.factor(step))

    def factor(self, step: int) -> float:
        """Share of the learning rate that optimizer step `step`, counted from 0, trains with."""
        if step >= self.total_steps:
            return self.final_fraction
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * done)) / 2
