"""A dataset whose items take their time, as decoding does, without taking a core."""

from __future__ import annotations

import time

import torch
from torch import Tensor

SLEEP_S = 0.02


class Slow:
    """Item i: features [8] f32 drawn from i, and which half of them has the larger sum."""

    def __init__(self, length: int = 256) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(SLEEP_S)
        features = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return features, (features[:4].sum() > features[4:].sum()).long()
