"""A multilayer perceptron: linear layers with GELU between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Context, at_least


@dataclass(frozen=True)
class Mlp:
    inputs: int
    hidden: list[int]
    outputs: int

    def __post_init__(self) -> None:
        at_least(1, inputs=self.inputs, outputs=self.outputs)
        for i, width in enumerate(self.hidden):
            at_least(1, **{f"hidden[{i}]": width})

    def open(self, context: Context) -> MlpModel:
        return MlpModel(self)


class MlpModel(nn.Module):
    """Any [B, ...] f32 with `inputs` values a sample -> [B, outputs]."""

    def __init__(self, settings: Mlp) -> None:
        super().__init__()
        self.inputs = settings.inputs
        widths = [settings.inputs, *settings.hidden]
        self.layers = nn.ModuleList(Layer(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], settings.outputs)
        widths.append(settings.outputs)
        products = [a * b for a, b in pairwise(widths)]
        self._flops_per_sample = float(6 * sum(products) - 2 * products[0])

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)
        if x.shape[1] != self.inputs:
            raise ValueError(
                f"a sample has {x.shape[1]} values, model.inputs={self.inputs}: make them equal"
            )
        for layer in self.layers:
            x = layer(x)
        outputs: Tensor = self.head(x)
        return outputs

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def flops_per_unit(self) -> float:
        """FLOPs a sample of the matrix products, forward and backward: 2 + 4 a weight, less the
        2 of the first layer's input gradient, which nobody asks for."""
        return self._flops_per_sample


class Layer(nn.Module):
    """Linear and GELU, [B, inputs] -> [B, outputs]."""

    # a class of our own, not nn.Sequential: on torch 2.13 `.compile()` on that one runs eager

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x))
