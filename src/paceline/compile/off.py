"""compile=off: the model runs eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from paceline.types import CompileReport, Context


@dataclass(frozen=True)
class Off:
    def open(self, context: Context) -> Eager:
        return Eager()


class Eager:
    compare_eager = False

    def __call__(self, module: nn.Module, inner: Sequence[nn.Module] = ()) -> None:
        return None

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        return None

    def tick(self, step: int) -> bool:
        return False

    def explain(self, error: BaseException) -> str | None:
        return None

    def report(self) -> CompileReport:
        return CompileReport()

    def close(self) -> None:
        return None
