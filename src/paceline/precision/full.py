"""precision=fp32: every tensor as the model made it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.precision.clip import clip_and_step
from paceline.types import Context


@dataclass(frozen=True)
class Full:
    def open(self, context: Context) -> FullPrecision:
        return FullPrecision()


class FullPrecision:
    def __init__(self) -> None:
        self._nothing: AbstractContextManager[Any] = nullcontext()

    def forward(self) -> AbstractContextManager[Any]:
        return self._nothing

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        return clip_and_step(optimizer, clip)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None
