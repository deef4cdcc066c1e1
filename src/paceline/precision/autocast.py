"""precision=bf16: parameters in float32, matrix products in the lower precision by autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from paceline.precision.full import FullPrecision
from paceline.types import Context


@dataclass(frozen=True)
class Autocast:
    dtype: Literal["bfloat16"]

    def open(self, context: Context) -> AutocastPrecision:
        return AutocastPrecision(context.world.device.type, getattr(torch, self.dtype))


class AutocastPrecision(FullPrecision):
    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._device_type, self.compute_dtype = device_type, dtype

    def forward(self) -> AbstractContextManager[Any]:
        if self.cast_by_wrapper:
            return self._nothing
        # a new one each time: autocast drops its cache of cast weights when it ends
        return torch.autocast(self._device_type, self.compute_dtype)
