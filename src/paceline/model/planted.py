"""A small network that is as slow as is asked for, in the way that is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Context, at_least


@dataclass(frozen=True)
class Planted:
    """[B, length, features] f32 -> [B, outputs]: a mean over length, then layers of `width`.

    `python_calls`: so many operators on one number, as code in loops over elements calls them.
    `host_wait_s`: the host stands still so long in each forward, as when it waits for a device, a
    file or a lock. `matmul`: the last activation goes once more through a product with [matmul,
    matmul] for each sample. `parameters`: so many small ones are added, all of them used.
    `slow_rank`, `slow_s`: that rank stands still so long in each forward; -1: none. `without`: the
    bound whose plants are left out, `host`, `compute`, `optimizer` or `straggler`.
    """

    features: int
    width: int
    layers: int
    outputs: int
    python_calls: int
    host_wait_s: float
    matmul: int
    parameters: int
    slow_rank: int
    slow_s: float
    without: str

    def __post_init__(self) -> None:
        at_least(1, features=self.features, width=self.width, outputs=self.outputs)
        at_least(0, layers=self.layers, python_calls=self.python_calls, matmul=self.matmul)
        at_least(0, parameters=self.parameters)
        at_least(-1, slow_rank=self.slow_rank)
        for name in ("host_wait_s", "slow_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give seconds, 0 or more")

    def open(self, context: Context) -> PlantedModel:
        return PlantedModel(self, context.world.rank)


class PlantedModel(nn.Module):
    def __init__(self, settings: Planted, rank: int) -> None:
        super().__init__()
        out = settings.without
        self.calls = 0 if out == "host" else settings.python_calls
        self.wait_s = 0.0 if out == "host" else settings.host_wait_s
        slow = settings.slow_rank == rank and out != "straggler"
        self.slow_s = settings.slow_s if slow else 0.0
        self.first = nn.Linear(settings.features, settings.width)
        deep = 0 if out == "compute" else settings.layers
        self.layers = nn.ModuleList(nn.Linear(settings.width, settings.width) for _ in range(deep))
        self.head = nn.Linear(settings.width, settings.outputs)
        size = 0 if out == "compute" else settings.matmul
        self.wide = nn.Linear(settings.width, size) if size else None
        self.square = nn.Linear(size, size) if size else None
        self.narrow = nn.Linear(size, settings.width) if size else None
        many = 0 if out == "optimizer" else settings.parameters
        self.small = nn.ParameterList(torch.zeros(settings.width) for _ in range(many))

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.gelu(self.first(inputs.mean(1)))
        for layer in self.layers:
            x = F.gelu(layer(x))
        if self.wide is not None and self.square is not None and self.narrow is not None:
            x = x + self.narrow(F.gelu(self.square(F.gelu(self.wide(x)))))
        if len(self.small):
            x = x + torch.stack(list(self.small)).mean(0)
        if self.calls:
            x = x + self._count(x)
        if self.wait_s or self.slow_s:
            _stand_still(self.wait_s + self.slow_s)
        outputs: Tensor = self.head(x)
        return outputs

    def _count(self, x: Tensor) -> Tensor:
        """`calls` operators on one number, whose sum is nothing."""
        number = x.detach()[0, 0]
        for _ in range(self.calls):
            number = number * 0.5
        return number * 0.0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _stand_still(seconds: float) -> None:
    time.sleep(seconds)
