"""The weight of a micro-batch whose size says it all."""

from __future__ import annotations

import torch
from torch import Tensor


class FixedWeight:
    """numel -> weight [] f32 on the tensor's device, made once a size.

    So no step allocates or syncs for it. Every call gives the same tensor: don't change it.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, torch.device], Tensor] = {}

    def __call__(self, counted: Tensor) -> Tensor:
        key = (counted.numel(), counted.device)
        weight = self._made.get(key)
        if weight is None:
            # one made while evaluating must serve in training too, where autograd may keep it
            with torch.inference_mode(False):
                weight = torch.full((), float(key[0]), device=key[1])
            self._made[key] = weight
        return weight
