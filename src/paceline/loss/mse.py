"""Squared error, summed, with the number of elements as its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.loss.weight import FixedWeight
from paceline.types import Batch, Context


@dataclass(frozen=True)
class Mse:
    def open(self, context: Context) -> SquaredErrorSum:
        return SquaredErrorSum()


class SquaredErrorSum:
    """(model, (inputs, targets [...] f32)) -> (sum [] f32, number of elements [] f32), in f32;
    of float64 outputs in float64."""

    fixed_weight = True

    def __init__(self) -> None:
        self._weight = FixedWeight()

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        inputs, targets = batch
        outputs = model(inputs)
        if outputs.shape != targets.shape:  # torch would broadcast, and train on something else
            raise ValueError(
                f"loss=mse: the model gives {list(outputs.shape)}, the targets are "
                f"{list(targets.shape)}: give targets of the outputs' shape, or loss=cross_entropy"
            )
        if outputs.itemsize < 4:
            outputs = outputs.float()
        if targets.dtype is not outputs.dtype:
            targets = targets.to(outputs.dtype)
        return F.mse_loss(outputs, targets, reduction="sum"), self._weight(targets)
