"""Models, data and backends that a compiler meets in the wild; see test_compiled.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Encoder(nn.TransformerEncoder):
    """[B, 64] as 4 tokens of 16 -> logits [B, 10]: a class of torch.nn as the whole model."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        encoded = super().forward(x.view(-1, 4, 16))
        return encoded.mean(1)[:, :10]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return Encoder(layer, 2, enable_nested_tensor=False)


class Branching(nn.Module):
    """Takes a branch that depends on the data, in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 0:  # BRANCH
            x = x * 2
        out: Tensor = self.last(x)
        return out


class Sizes:
    """[n, 64] vectors whose n is given step by step, the last one from then on."""

    unit = "samples"
    sampling: Literal["seeded", "own"] = "own"

    def __init__(self, sizes: list[int], last: int) -> None:
        self.sizes, self.last = sizes, last

    def count(self, batch: Any) -> int:
        return len(batch[0])

    def batches(self, first_step: int) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(0)
        step = first_step
        while True:
            size = self.sizes[step] if step < len(self.sizes) else self.last
            x = torch.randn(size, 64, generator=generator)
            yield x, x[:, :10].argmax(1)
            step += 1

    def held_out(self, batches: int) -> Iterator[Any]:
        return iter(())

    def num_batches(self) -> int | None:
        return None

    def digest(self, micro_batches: int) -> int | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


def wrong(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend that miscompiles: every result is 5 % too large."""

    def run(*arguments: Any) -> Any:
        return tuple(out * 1.05 for out in graph(*arguments))

    return run
