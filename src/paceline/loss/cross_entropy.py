"""Cross-entropy against class indices, summed, with the number of targets as its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.loss.weight import FixedWeight
from paceline.types import Batch, Context

NEVER = torch.iinfo(torch.int64).min
"""No target has this value. torch's own default would drop targets of -100 without a word."""


@dataclass(frozen=True)
class CrossEntropy:
    """`ignore_index`: targets of this value have no part in the loss; null: every target counts."""

    ignore_index: int | None
    label_smoothing: float

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: give a share from 0 to 1")

    def open(self, context: Context) -> CrossEntropySum:
        return CrossEntropySum(self)


class CrossEntropySum:
    """(model, (inputs, targets [...] int64)) -> (sum [] f32, number of targets that count [] f32).

    The model gives logits [..., V] over the targets' shape; the loss is computed in
    float32, of float64 logits in float64.
    """

    def __init__(self, settings: CrossEntropy) -> None:
        self.fixed_weight = settings.ignore_index is None
        self._ignored = NEVER if settings.ignore_index is None else settings.ignore_index
        self._label_smoothing = settings.label_smoothing
        self._weight = FixedWeight()

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        inputs, targets = batch
        logits = model(inputs)
        if logits.itemsize < 4:
            logits = logits.float()
        if logits.dim() > 2:
            logits, targets = logits.flatten(0, -2), targets.flatten()
        total = F.cross_entropy(
            logits,
            targets,
            ignore_index=self._ignored,
            reduction="sum",
            label_smoothing=self._label_smoothing,
        )
        if self.fixed_weight:
            return total, self._weight(targets)
        return total, targets.ne(self._ignored).sum(dtype=torch.float32)
